//! The options of `gate run`.

use std::path::PathBuf;

use ipnet::IpNet;

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration.
    pub config: PathBuf,
    /// The interfaces, instead of the configuration's; the configuration's if there are none.
    pub interfaces: Vec<String>,
    /// The pin directory, instead of the configuration's.
    pub pin_dir: Option<PathBuf>,
    /// End a gate that runs already, and take over from it.
    pub takeover: bool,
    /// The sources of which each packet's steps are printed; none if not said.
    pub trace: Option<IpNet>,
}
