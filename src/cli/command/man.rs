//! `thermocline man`: the manual pages, for packages.

use crate::cli::failure::{Exit, Failure};
use crate::cli::output::write_file;
use clap_mangen::Man;
use std::path::Path;

/// Writes `thermocline.1` and a page for each command into `folder`, which is created.
///
/// # Errors
/// The folder or a page cannot be written.
pub(crate) fn run(folder: &Path, mut cli: clap::Command) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|e| {
        let message = format!("cannot create the folder '{}'", folder.display());
        Failure::new(Exit::Failed, message).caused_by(&e)
    })?;
    // The help of the help would be a page for each command again.
    cli = cli.disable_help_subcommand(true);
    cli.build();
    write(folder, &cli)?;
    cli.get_subcommands().filter(|c| !c.is_hide_set()).try_for_each(|c| write(folder, c))
}

fn write(folder: &Path, command: &clap::Command) -> Result<(), Failure> {
    let man = Man::new(command.clone())
        .manual("Thermocline")
        .source(concat!("thermocline ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render(&mut page).map_err(|e| {
        Failure::new(Exit::Failed, "a manual page cannot be rendered").caused_by(&e)
    })?;
    write_file(&folder.join(man.get_filename()), &String::from_utf8_lossy(&page))
}
