//! Shader texts: files of `shaders/`, assembled by replacing placeholders in double braces.
//!
//! * `{{NAME}}` is a value that the op sets.
//! * `{{include NAME}}` is a file of `shaders/lib/`, or the file that the op chose for `NAME` (a
//!   format). In it, `{{self}}` is `NAME`, so that a shader can include two formats without name
//!   clashes.
//!
//! Bindings are lines `@group(0) @binding(0) var<storage, read> name: type;`, in order from 0.

use std::fmt::Display;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// Every file of `shaders/`, by its path without ending.
        const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../shaders/", $name, ".wgsl")))),*];
    };
}

files![
    "across_few",
    "add",
    "attention",
    "attention_merge",
    "cache/dot_four",
    "cache/dot_one",
    "cache/read_bf16",
    "cache/read_f16",
    "cache/read_f32",
    "cache/read_q8_0",
    "cache/store_bf16",
    "cache/store_f16",
    "cache/store_f32",
    "cache/store_q8_0",
    "copy_heads",
    "copy_words",
    "down_few",
    "down_many",
    "down_reduce",
    "experts_hidden",
    "experts_pairs",
    "experts_reduce",
    "ffn_count",
    "ffn_cut",
    "ffn_few",
    "ffn_hidden",
    "ffn_mask",
    "formats/access",
    "formats/bf16",
    "formats/block",
    "formats/by_four",
    "formats/dots_four",
    "formats/dots_one",
    "formats/f16",
    "formats/f32",
    "formats/four_float",
    "formats/four_q8",
    "formats/iq1_m",
    "formats/iq1_s",
    "formats/iq2_s",
    "formats/iq2_xs",
    "formats/iq2_xxs",
    "formats/iq3_s",
    "formats/iq3_xxs",
    "formats/iq4",
    "formats/iq4_nl",
    "formats/iq4_xs",
    "formats/mxfp4",
    "formats/q1_0",
    "formats/q2_k",
    "formats/q3_k",
    "formats/q4_0",
    "formats/q4_1",
    "formats/q4_k",
    "formats/q5_0",
    "formats/q5_1",
    "formats/q5_k",
    "formats/q6_k",
    "formats/q8_0",
    "formats/transposed",
    "formats/unit_float",
    "formats/unit_q8",
    "gated_delta",
    "gather",
    "get_rows",
    "lib/activation",
    "lib/batch",
    "lib/down_every",
    "lib/down_groups",
    "lib/every_token",
    "lib/flat",
    "lib/group_tokens",
    "lib/half",
    "lib/row_sum",
    "lib/row_sum_near",
    "lib/sequence",
    "lib/sigmoid",
    "lib/sum",
    "lib/sum_near",
    "lib/tanh",
    "lib/tokens_four",
    "lib/tokens_one",
    "lib/turn",
    "lib/wanted",
    "lib/wants",
    "matmul_few",
    "matmul_many",
    "matmul_many_float",
    "merge",
    "mul",
    "norm",
    "patch_word",
    "predict_count",
    "predict_list",
    "probe",
    "quantize",
    "rope",
    "route",
    "short_conv",
    "soft_cap",
    "ssm_scan",
    "store_kv",
];

/// A shader with everything that its text depends on.
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

    /// Sets a file of `shaders/` for `{{include name}}`. Several files are concatenated, each of
    /// them once.
    #[must_use]
    pub(crate) fn include(mut self, name: &'static str, file: &'static str) -> Source {
        if !self.includes.contains(&(name, file)) {
            self.includes.push((name, file));
        }
        self
    }

    /// Sets the subgroup size for files that sum over invocations.
    #[must_use]
    pub(crate) fn near(self, near: Option<u32>) -> Source {
        match near {
            None => self,
            Some(near) => self
                .include("row_sum", "lib/row_sum_near")
                .include("sum", "lib/sum_near")
                .set("NEAR", near),
        }
    }

    /// The file's name, for messages.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// For each binding, whether the shader writes to it.
    pub(crate) fn bindings(&self) -> Vec<bool> {
        let text = file(self.name);
        let lines = text.lines().filter(|line| line.contains("@binding("));
        lines.map(|line| line.contains("read_write>")).collect()
    }

    /// The whole text. `shared` declares all bindings as writable, which wgpu requires if one
    /// buffer is bound for reading and for writing. Placeholders without a value remain, and the
    /// driver rejects them.
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
        for (name, value) in &self.values {
            text = text.replace(&format!("{{{{{name}}}}}"), value);
        }
        if shared { text.replace("var<storage, read>", "var<storage, read_write>") } else { text }
    }
}

/// The text of a file; for a missing file, a line that no driver accepts.
fn file(name: &str) -> &'static str {
    FILES.iter().find(|(file, _)| *file == name).map_or("{{no such file}}", |(_, text)| text)
}

/// Name and position of the first include in a text.
fn first_include(text: &str) -> Option<(String, std::ops::Range<usize>)> {
    let start = text.find("{{include ")?;
    let len = text[start..].find("}}")?;
    let name = text[start..start + len].trim_start_matches("{{include ").trim();
    Some((name.to_owned(), start..start + len + 2))
}
