//! WGSL source code: files of `shaders/`, assembled by replacing placeholders in double braces.
//!
//! * `{{NAME}}` is a value that the op sets.
//! * `{{include NAME}}` is a file of `shaders/lib/`, or the file that the op chose for `NAME`, for
//!   example a format. In the included file, `{{self}}` is `NAME`, so that a shader can include two
//!   formats without name clashes.
//!
//! * `{{repeat i in NAME}}` to `{{end}}` is text that is repeated for `{{i}}` from 0 to the value of
//!   `NAME` minus 1: loops that must be unrolled so that what they index stays in registers.
//!
//! Bindings are lines `@group(0) @binding(0) var<storage, read> name: type;`, in order from 0.

use std::fmt::Display;

/// Every file of `shaders/`, by its path without extension.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shaders.rs"));

/// A shader file, and the values and includes that replace its placeholders.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    name: &'static str,
    values: Vec<(&'static str, String)>,
    includes: Vec<(&'static str, &'static str)>,
}

impl Source {
    /// The shader in file `name` of `shaders/`.
    pub(crate) fn new(name: &'static str) -> Source {
        Source { name, values: Vec::new(), includes: Vec::new() }
    }

    /// Sets the value of `{{name}}`.
    #[must_use]
    pub(crate) fn set(mut self, name: &'static str, value: impl Display) -> Source {
        self.values.push((name, value.to_string()));
        self
    }

    /// Sets a file of `shaders/` for `{{include name}}`. Several files are concatenated; a repeated
    /// file is included once.
    #[must_use]
    pub(crate) fn include(mut self, name: &'static str, file: &'static str) -> Source {
        if !self.includes.contains(&(name, file)) {
            self.includes.push((name, file));
        }
        self
    }

    /// Makes sums over invocations use subgroups of this size; `None` changes nothing.
    #[must_use]
    pub(crate) fn with_subgroups(self, size: Option<u32>) -> Source {
        match size {
            None => self,
            Some(size) => self
                .include("row_sum", "lib/row_sum_near")
                .include("sum", "lib/sum_near")
                // It exchanges four lanes at least.
                .include("sum_two", if size < 4 { "lib/sum_two" } else { "lib/sum_two_near" })
                .set("NEAR", size),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// For each binding, whether the shader writes to it.
    pub(crate) fn bindings(&self) -> Vec<bool> {
        let text = file(self.name);
        let lines = text.lines().filter(|line| line.contains("@binding("));
        lines.map(|line| line.contains("read_write>")).collect()
    }

    /// The complete source code. `shared` declares all bindings as writable, which wgpu requires if
    /// one buffer is bound for reading and for writing. Placeholders without a value remain, and
    /// the driver rejects them.
    pub(crate) fn text(&self, shared: bool) -> String {
        let mut text = file(self.name).to_owned();
        // Included files may include others.
        while let Some((name, at)) = first_include(&text) {
            let chosen = self.includes.iter().filter(|(placeholder, _)| *placeholder == name);
            let mut included: String = chosen.map(|(_, path)| file(path)).collect();
            if included.is_empty() {
                file(&format!("lib/{name}")).clone_into(&mut included);
            }
            let included = included.replace("{{self}}", &name);
            text.replace_range(at, &included);
        }
        while let Some((at, unrolled)) = self.first_repeat(&text) {
            text.replace_range(at, &unrolled);
        }
        for (name, value) in &self.values {
            text = text.replace(&format!("{{{{{name}}}}}"), value);
        }
        if shared { text.replace("var<storage, read>", "var<storage, read_write>") } else { text }
    }

    /// The range of the first repetition in some source code, and its text.
    fn first_repeat(&self, text: &str) -> Option<(std::ops::Range<usize>, String)> {
        let start = text.find("{{repeat ")?;
        let head = start + text[start..].find("}}")?;
        let end = head + text[head..].find("{{end}}")?;
        let (index, count) =
            text[start..head].trim_start_matches("{{repeat ").split_once(" in ")?;
        let n = self.values.iter().find(|(name, _)| *name == count)?.1.parse::<usize>().ok()?;
        let (body, index) = (&text[head + 2..end], format!("{{{{{index}}}}}"));
        let unrolled = (0..n).map(|i| body.replace(&index, &i.to_string())).collect();
        Some((start..end + 7, unrolled))
    }
}

/// Whether a shader exchanges values between lanes in a way that subgroups replace.
pub(crate) fn has_sums(name: &str) -> bool {
    FILES.iter().find(|(file, _)| *file == name).is_some_and(|(name, _)| {
        let plain = Source::new(name);
        plain.text(false) != plain.clone().with_subgroups(Some(4)).text(false)
    })
}

/// A hash (FNV-1a) of all shaders.
pub(crate) fn hash() -> u64 {
    let bytes = FILES.iter().flat_map(|(name, text)| name.bytes().chain(text.bytes()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The contents of a file; for a missing file, a line that no driver accepts.
fn file(name: &str) -> &'static str {
    FILES.iter().find(|(file, _)| *file == name).map_or("{{no such file}}", |(_, text)| text)
}

/// Name and position of the first include in some source code.
fn first_include(text: &str) -> Option<(String, std::ops::Range<usize>)> {
    let start = text.find("{{include ")?;
    let len = text[start..].find("}}")?;
    let name = text[start..start + len].trim_start_matches("{{include ").trim();
    Some((name.to_owned(), start..start + len + 2))
}
