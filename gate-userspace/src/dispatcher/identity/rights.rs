//! The rights of a user, as the store says them (`ACL GETUSER`).

use crate::protocol::resp::says_unknown_command;

/// True if the store says that a user may do everything with all keys, as Redis 7 puts it or as Redis 6 did. A store
/// without ACLs restricts no user.
pub(crate) fn has_all_permissions(rights: &[u8]) -> bool {
    let has = |words: &[u8]| memchr::memmem::find(rights, words).is_some();
    says_unknown_command(rights)
        || has(b"\r\n$8\r\ncommands\r\n$5\r\n+@all\r\n") && has(b"\r\n$4\r\nkeys\r\n$2\r\n~*\r\n")
        || has(b"\r\n$7\r\nallkeys\r\n") && has(b"\r\n$11\r\nallcommands\r\n")
}

/// True if the store says that a user may send `UNLINK`, and `DEL` in whose place it goes. A store without ACLs restricts no user.
pub(crate) fn may_unlink(rights: &[u8]) -> bool {
    let may_send_both = || {
        may(rights, &[b"unlink", b"@all", b"@keyspace", b"@write", b"@fast"])
            && may(rights, &[b"del", b"@all", b"@keyspace", b"@write", b"@slow"])
    };
    has_all_permissions(rights) || may_send_both()
}

/// True if a user may send a command: its name and its categories are these.
fn may(rights: &[u8], names: &[&[u8]]) -> bool {
    let Some(at) = memchr::memmem::find(rights, b"\r\n$8\r\ncommands\r\n") else { return false };
    // The length, then the rules; the last one that concerns it holds.
    let rules = rights[at + b"\r\n$8\r\ncommands\r\n".len()..].split(|&byte| byte == b'\n').nth(1);
    let mut may = false;
    for rule in rules.unwrap_or_default().split(|byte| matches!(byte, b' ' | b'\r')) {
        let (is_allowed, what) = match rule.split_first() {
            Some((b'+', what)) => (true, what),
            Some((b'-', what)) => (false, what),
            Some(_) | None => continue,
        };
        if names.contains(&what) {
            may = is_allowed;
        }
    }
    may
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rule_about_a_command_holds() {
        let of = |rules: &str| {
            format!("*4\r\n$8\r\ncommands\r\n${}\r\n{rules}\r\n$4\r\nkeys\r\n$2\r\n~*\r\n", rules.len())
        };
        for (rules, may) in [
            ("+@all", true),
            ("+@all -@dangerous", true),
            ("+@all -unlink", false),
            ("+@all -@keyspace", false),
            ("-@all +@write -@dangerous", true),
            ("-@all +@read", false),
            ("-@all +del", false),
            ("-@all +unlink", false),
            ("-@all +unlink +del", true),
            ("+@all -@write +unlink", false),
            ("+@all -del", false),
            ("+@all -@slow", false),
            ("+@all -unlink2", true),
            ("", false),
        ] {
            assert_eq!(may_unlink(of(rules).as_bytes()), may, "{rules}");
        }
        assert!(may_unlink(b"-ERR unknown command 'ACL'\r\n"));
        for unknown in ["-NOPERM this user has no permissions\r\n", "*-1\r\n", "$-1\r\n", ""] {
            assert!(!may_unlink(unknown.as_bytes()), "{unknown}");
        }
    }

    #[test]
    fn only_users_with_all_permissions_share_the_cache() {
        let redis_7 = |commands: &str, keys: &str| {
            let commands_len = commands.len();
            let keys_len = keys.len();
            format!(
                "*12\r\n$5\r\nflags\r\n*1\r\n$2\r\non\r\n$9\r\npasswords\r\n*0\r\n$8\r\ncommands\r\n\
                 ${commands_len}\r\n{commands}\r\n$4\r\nkeys\r\n${keys_len}\r\n{keys}\r\n"
            )
        };
        let redis_6 = "*4\r\n$5\r\nflags\r\n*3\r\n$2\r\non\r\n$7\r\nallkeys\r\n$11\r\nallcommands\r\n";
        for (rights, everything) in [
            (redis_7("+@all", "~*"), true),
            (redis_7("+@all -acl", "~*"), false),
            (redis_7("+@all", "~b:*"), false),
            (redis_7("-@all +get", "~*"), false),
            (redis_6.to_owned(), true),
            (redis_6.replace("$7\r\nallkeys\r\n", ""), false),
            ("-ERR unknown command `ACL`, with args beginning with: \r\n".to_owned(), true),
            ("-NOPERM this user has no permissions\r\n".to_owned(), false),
            ("-NOAUTH Authentication required.\r\n".to_owned(), false),
            ("*-1\r\n".to_owned(), false),
        ] {
            assert_eq!(has_all_permissions(rights.as_bytes()), everything, "{rights}");
        }
    }
}
