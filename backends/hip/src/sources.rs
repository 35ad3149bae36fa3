//! The sources of the kernels, each expanded with all its includes to one text, so that the
//! compiler needs no include path.

use hal::{Error, Result};
use simt::units::source;

/// Include names and texts.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));
/// The kernel files and the variants of each.
const UNITS: &str = include_str!("../../../kernels-cuda/UNITS");

/// Input of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) unit: String,
    pub(crate) text: String,
    /// `-DFORMAT=q4_0`
    pub(crate) names: Vec<String>,
}

/// The source of a unit.
///
/// # Errors
/// [`Error::Driver`] if it does not exist.
pub(crate) fn of(unit: &str) -> Result<Source> {
    let missing = |what: &str| Error::Driver {
        call: format!("compile {unit}"),
        code: 0,
        message: format!("this program has no {what}"),
    };
    let (file, names) = source(UNITS, unit).ok_or_else(|| missing("such kernels"))?;
    let mut text = String::new();
    include(FILES, &format!("{file}.cu"), &mut text, &mut Vec::new())
        .map_err(|name| missing(&name))?;
    let names = names.iter().map(|(name, value)| format!("-D{name}={value}")).collect();
    Ok(Source { unit: unit.to_owned(), text, names })
}

/// Adds a file, replacing each include by the named file, once.
fn include<'a>(
    files: &'a [(&'a str, &'a str)],
    name: &str,
    text: &mut String,
    done: &mut Vec<&'a str>,
) -> std::result::Result<(), String> {
    let beside = name.rsplit_once('/').map_or("", |(folder, _)| folder);
    let Some((name, source)) = files.iter().find(|(other, _)| *other == name) else {
        return Err(name.to_owned());
    };
    if done.contains(name) {
        return Ok(());
    }
    done.push(name);
    for line in source.lines() {
        let wanted = line.trim_start().strip_prefix("#include \"");
        match wanted.and_then(|rest| rest.split_once('"')) {
            Some((wanted, _)) => {
                let near = format!("{beside}/{}", wanted.trim_start_matches("./"));
                let up = wanted.trim_start_matches("../");
                let known = |name: &str| files.iter().any(|(other, _)| *other == name);
                include(files, if known(&near) { &near } else { up }, text, done)?;
            }
            None if line.trim() == "#pragma once" => {}
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_replaced_once() {
        let files = [
            ("a.cu", "#include \"lib/b.cuh\"\n#include \"c.h\"\na"),
            ("c.h", "#pragma once\nc"),
            ("lib/b.cuh", "#pragma once\n#include \"../c.h\"\n  #include \"d.cuh\" // why\nb"),
            ("lib/d.cuh", "#include <hip/hip_fp16.h>"),
        ];
        let mut text = String::new();
        include(&files, "a.cu", &mut text, &mut Vec::new()).unwrap();
        assert_eq!(text, "c\n#include <hip/hip_fp16.h>\nb\na\n");
        assert!(include(&files[..3], "a.cu", &mut text, &mut Vec::new()).is_err());
    }

    #[test]
    fn every_file_of_the_list_has_all_that_it_includes() {
        let files = UNITS
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once(' '));
        for (file, _) in files {
            let mut text = String::new();
            let done = include(FILES, &format!("{file}.cu"), &mut text, &mut Vec::new());
            assert_eq!(done, Ok(()), "{file}");
            assert!(!text.contains("#include \""), "{file}");
        }
    }
}
