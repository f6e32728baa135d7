//! Rules that the source and the documents keep: imports, names, and the paths that documents name.

mod bindings;
mod documents;
mod purity;
mod sizes;
mod sleeps;
mod source;
mod structure;
mod test_names;
mod unsafe_code;
mod words;
