//! The sources of the kernels. Includes are expanded here, so that the compiler needs no include
//! path.

use hal::{Error, Result};
use simt::units::source;

use crate::code_cache::{FNV_START, fnv};

/// Include names and contents of the kernel files.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));
/// The kernel files with variants.
const VARIANTS: &str = include_str!("../../../kernels-cuda/VARIANTS");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) unit: String,
    pub(crate) text: String,
    /// Compiler options for the variant: `-DFORMAT=q4_0`.
    pub(crate) options: Vec<String>,
}

/// A hash of all kernel files.
pub(crate) fn hash() -> u64 {
    FILES
        .iter()
        .fold(FNV_START, |sum, (name, text)| fnv(fnv(sum, name.as_bytes()), text.as_bytes()))
}

/// The source of a unit, with its includes expanded.
///
/// # Errors
/// [`Error::Driver`] if the unit does not exist.
pub(crate) fn expand(unit: &str) -> Result<Source> {
    let missing = |what: &str| Error::Driver {
        call: format!("compile {unit}"),
        code: 0,
        message: format!("this build has no {what}"),
    };
    let (file, names) = source(VARIANTS, unit).ok_or_else(|| missing("such kernels"))?;
    let mut text = String::new();
    include(FILES, &format!("{file}.cu"), &mut text, &mut Vec::new())
        .map_err(|name| missing(&name))?;
    let options = names.iter().map(|(name, value)| format!("-D{name}={value}")).collect();
    Ok(Source { unit: unit.to_owned(), text, options })
}

/// Appends a file to `text`, with its includes expanded; each file is appended only once.
fn include<'a>(
    files: &'a [(&'a str, &'a str)],
    name: &str,
    text: &mut String,
    included: &mut Vec<&'a str>,
) -> std::result::Result<(), String> {
    let folder_of_file = name.rsplit_once('/').map_or("", |(folder, _)| folder);
    let Some((name, source)) = files.iter().find(|(other, _)| *other == name) else {
        return Err(name.to_owned());
    };
    if included.contains(name) {
        return Ok(());
    }
    included.push(name);
    for line in source.lines() {
        let quoted = line.trim_start().strip_prefix("#include \"");
        match quoted.and_then(|rest| rest.split_once('"')) {
            Some((path, _)) => {
                let in_same_folder = format!("{folder_of_file}/{}", path.trim_start_matches("./"));
                let from_root = path.trim_start_matches("../");
                let known = |name: &str| files.iter().any(|(other, _)| *other == name);
                include(
                    files,
                    if known(&in_same_folder) { &in_same_folder } else { from_root },
                    text,
                    included,
                )?;
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
pub(crate) mod tests {
    use hal::format::Format;

    use super::*;

    /// The names of all units.
    pub(crate) fn unit_names() -> Vec<String> {
        let files = FILES.iter().filter_map(|(name, _)| name.strip_suffix(".cu"));
        let has = |folder: &str, format: &str| {
            FILES.iter().any(|(name, _)| *name == format!("{folder}/{format}.cuh"))
        };
        let mut variants: Vec<String> =
            Format::ALL.iter().map(|&format| simt::units::format_name(format)).collect();
        variants.extend(["transposed_nibbles", "transposed_bytes", "dynamic"].map(str::to_owned));
        let is_unit = |file: &str, variant: &str| {
            let is = |kind: &str| VARIANTS.lines().any(|line| line == format!("{file} {kind}"));
            let folder = if is("cache") { "cache" } else { "formats" };
            has(folder, variant) && source(VARIANTS, &format!("{file}.{variant}")).is_some()
                || is("down") && variant.starts_with("transposed")
        };
        let mut names = Vec::new();
        for file in files {
            if source(VARIANTS, file).is_some() {
                names.push(file.to_owned());
            }
            let variants = variants.iter().filter(|variant| is_unit(file, variant));
            names.extend(variants.map(|variant| format!("{file}.{variant}")));
        }
        names
    }

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
    fn every_kernel_file_has_its_includes() {
        let files: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        let files: Vec<&&str> = files.iter().filter(|name| name.ends_with(".cu")).collect();
        assert!(files.len() > 30, "{files:?}");
        for file in files {
            let mut text = String::new();
            assert_eq!(include(FILES, file, &mut text, &mut Vec::new()), Ok(()), "{file}");
            assert!(!text.contains("#include \""), "{file}");
        }
    }
}
