//! Errors in words, for a message of one line: those of the system with what to do about them, others with their causes.

use std::error::Error;
use std::io::{self, ErrorKind};

/// An error and what has caused it, each said once.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.fold(String::new(), |said, cause| {
        let cause = cause.to_string();
        match said.as_str() {
            "" => cause,
            before if before.contains(&cause) => said,
            before => format!("{before}: {cause}"),
        }
    })
}

/// The cause in a few words, and a remedy where there is one.
#[must_use]
pub fn in_words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "there is no such file".to_owned(),
        ErrorKind::PermissionDenied => {
            "permission denied; run as root, or as the user whom it belongs to".to_owned()
        }
        ErrorKind::IsADirectory => "that is a directory".to_owned(),
        ErrorKind::InvalidData => "that is no text in UTF-8".to_owned(),
        ErrorKind::FileTooLarge => "it is larger than 64 MiB".to_owned(),
        ErrorKind::AddrInUse => {
            "another program listens there; `ss -lntup` says which, end it or choose another port".to_owned()
        }
        ErrorKind::AddrNotAvailable => {
            "this machine has no such address; `ip address` lists those that it has".to_owned()
        }
        ErrorKind::ConnectionRefused => "nobody listens there".to_owned(),
        _ => plain(error),
    }
}

/// As [`in_words`], of a file that is to be made if it is not there.
#[must_use]
pub fn of_new_file(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => {
            "its directory does not exist; make it, for the user that gate runs as".to_owned()
        }
        _ => in_words(error),
    }
}

/// The system's own words, without their number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_named_in_words_and_without_numbers() {
        let of = |number| in_words(&io::Error::from_raw_os_error(number));
        assert_eq!(of(libc::ENOENT), "there is no such file");
        assert!(of(libc::EADDRINUSE).contains("`ss -lntup`"));
        assert!(of(libc::EADDRNOTAVAIL).contains("no such address"));
        assert_eq!(of(libc::EIO), "Input/output error");
        let made = |number| of_new_file(&io::Error::from_raw_os_error(number));
        assert!(
            made(libc::ENOENT).contains("its directory does not exist")
                && made(libc::EISDIR) == of(libc::EISDIR)
        );
        assert_eq!(in_words(&io::Error::other("of no use")), "of no use");
    }
}
