//! Named limits: quotas of what is no tenant of this gate, by a name or by a pattern of names.
//!
//! - `name`: a name's parts and its one spelling.
//! - `pattern`: names in which a `*` stands for any value.
//! - `quota`: the limits of a bucket; `calendar`: windows of days, weeks or months.
//! - `changes`: the log's lines about rules that have changed.
//! - `rules`: patterns and their limits, and the one that holds for a name.
//! - `reservations`: the names that are also assigned to Envoys, where gates share them.
//! - `table`: the buckets of the names that are in use; `bucket` is one of them, `shard` those under one lock.
//!
//! Pure, but for the locks of `table` and `reservations`: time is an argument.

mod bucket;
mod calendar;
mod changes;
mod name;
mod pattern;
mod quota;
mod reservations;
mod rules;
mod shard;
mod table;

pub use bucket::{Refusal, Share, Standing};
pub use calendar::{Calendar, Period, WallClock, Window};
pub use changes::log_changes;
pub use name::{Fit, Name, NameError};
pub use pattern::Pattern;
pub use quota::Limits;
pub use reservations::{Assigned, Reservations, Reserved};
pub use rules::{Rule, Rules, Taken};
pub use shard::{AskedLimit, Change, Counts};
pub use table::{Charge, Charged, Table, Totals};
