//! Rules that the source itself keeps: what may import what, and what things are called.

mod purity;
mod test_names;
mod words;
