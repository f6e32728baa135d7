//! A tenant's users and denied commands, and a proxied service's own user.

use std::collections::HashMap;
use std::path::PathBuf;

use super::fault::did_you_mean;
use super::parsers::{SWITCH, absolute_path, one_of};
use super::raw::Section;
use super::units::Wrong;
use super::values::Protocol;
use gate_protocol::deny::Deny;

/// A user of a store whose requests a tenant is charged for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name; distinct among all tenants' users.
    pub name: String,
    /// SHA-256 of the passwords that gate lets pass to the store; without any, all of them.
    pub hashes: Vec<[u8; 32]>,
}

/// The store's user for unauthenticated clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLogin {
    /// The user; `None` for the default one.
    pub store_user: Option<String>,
    /// Where its password is.
    pub store_password_file: PathBuf,
}

/// A tenant's users. `taken` holds the line of each tenant's.
pub(super) fn users(section: &mut Section<'_>, taken: &mut HashMap<String, usize>) -> Vec<User> {
    let mut users = Vec::new();
    for item in section.list("users", user) {
        if let Some(line) = taken.insert(item.value.name.clone(), item.line()) {
            item.fault(format!("is taken, on line {line}"));
        }
        users.push(item.value);
    }
    users
}

/// The commands that are refused to a tenant.
pub(super) fn deny(section: &mut Section<'_>) -> Deny {
    let mut deny = Deny::default();
    for item in section.list("deny", |text| Ok(text.to_owned())) {
        if !deny.add(&item.value) {
            let lower = item.value.to_ascii_lowercase();
            item.fault(match did_you_mean(&lower, Deny::names()) {
                Some(near) => format!("no command has this name; did you mean \"{near}\"?"),
                None => "must be a command of Redis or memcached, e.g. \"FLUSHALL\", \"CONFIG SET\", or \
                         \"unknown\" for those that gate does not know"
                    .to_owned(),
            });
        }
    }
    if section.get("deny_scripts", one_of(&SWITCH)).unwrap_or(false) {
        deny.add_scripts();
    }
    deny
}

/// A service's own user, if it has one.
pub(super) fn store_login(section: &mut Section<'_>, protocol: Protocol) -> Option<StoreLogin> {
    let store_user = section.get("store_user", name);
    let store_password_file = section.get("store_password_file", absolute_path);
    if section.has("store_user") && !section.has("store_password_file") {
        section.fault("store_user", "has no password: write store_password_file as well".to_owned());
    }
    if section.has("max_pools") && protocol != Protocol::Resp {
        section.fault("max_pools", "means something only with protocol = \"resp\"".to_owned());
    }
    if section.has("store_password_file") && !section.has("store_user") && protocol == Protocol::Memcached {
        let message = "memcached knows no password without a user: write store_user as well";
        section.fault("store_password_file", message.to_owned());
    }
    Some(StoreLogin { store_user, store_password_file: store_password_file? })
}

/// `name #<SHA-256 of a password> ...`, as Redis' ACL files have it.
fn user(text: &str) -> Result<User, Wrong> {
    let mut words = text.split(' ');
    let name = name(words.next().unwrap_or_default())?;
    let hashes = words.map(hash).collect::<Result<_, _>>()?;
    Ok(User { name, hashes })
}

fn name(text: &str) -> Result<String, Wrong> {
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic()) && !text.starts_with(['#', '>']);
    if (1..=MAX_NAME).contains(&text.len()) && plain {
        return Ok(text.to_owned());
    }
    Err(format!("must be the name of a user, 1 to {MAX_NAME} letters without blanks, e.g. \"alice\""))
}

fn hash(word: &str) -> Result<[u8; 32], Wrong> {
    let wrong =
        || "behind a user's name must be \"#\" and 64 hexadecimal digits, SHA-256 of a password".to_owned();
    let digits = word.strip_prefix('#').filter(|digits| digits.len() == 64).ok_or_else(wrong)?;
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(wrong);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Ok(hash)
}

/// Far beyond any that is used.
const MAX_NAME: usize = 128;
