//! The models among the files of a repository: quantisations, split files, files to leave out.

use std::collections::BTreeMap;

/// Quantisations that are tried in this order if the user names none. The first two are
/// llama.cpp's; with Q4_0, the smaller file of a PowerInfer repository is preferred to F16.
const DEFAULTS: [&str; 3] = ["Q4_K_M", "Q8_0", "Q4_0"];

/// Words in the names of files that llama.cpp does not run as a model either: projectors for images,
/// importance matrices, and draft models of speculative decoding.
const NOT_MODELS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

/// Digits of a part's number in `NAME-00001-of-00003.gguf`.
const DIGITS: usize = 5;

/// End of the name of a side file, which holds a model's profile and predictor.
const SIDE_FILE: &str = ".thermocline.gguf";

/// The files of one model, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) files: Vec<String>,
    /// Number of parts that the names state; 1 for a whole file.
    pub(crate) count: usize,
}

impl Group {
    /// The model's first file.
    pub(crate) fn first(&self) -> &str {
        self.files.first().map_or("", String::as_str)
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.files.len() == self.count
    }

    /// The quantisation that the file's name states; else the file's name.
    pub(crate) fn label(&self) -> String {
        let name = stem(self.first()).0;
        quantisation(name).unwrap_or_else(|| name.rsplit('/').next().unwrap_or(name).to_owned())
    }
}

/// The side file of a model file.
pub(crate) fn side_file(file: &str) -> String {
    format!("{}{SIDE_FILE}", file.strip_suffix(".gguf").unwrap_or(file))
}

/// The models among the files of a repository, sorted by name. Projectors for images (`mmproj`),
/// importance matrices, side files and anything but GGUF are left out.
pub(crate) fn groups<'a>(files: impl Iterator<Item = &'a str>) -> Vec<Group> {
    let mut groups: BTreeMap<(String, usize), BTreeMap<usize, String>> = BTreeMap::new();
    for file in files.filter(|file| is_model(file)) {
        let (name, part, count) = stem(file);
        let parts = groups.entry((name.to_owned(), count)).or_default();
        parts.insert(part, file.to_owned());
    }
    let group = |((_, count), parts): ((String, usize), BTreeMap<usize, String>)| Group {
        files: parts.into_values().collect(),
        count,
    };
    groups.into_iter().map(group).collect()
}

fn is_model(file: &str) -> bool {
    let lower = file.to_ascii_lowercase();
    let name = lower.rsplit('/').next().unwrap_or(&lower);
    name.ends_with(".gguf")
        && !name.ends_with(SIDE_FILE)
        && !NOT_MODELS.iter().any(|word| name.contains(word))
}

/// The name without extension and part number, the part number from 1 on, the number of parts.
fn stem(file: &str) -> (&str, usize, usize) {
    let whole = file.get(..file.len().saturating_sub(5)).unwrap_or(file);
    let split = || {
        let (rest, count) = whole.rsplit_once("-of-")?;
        let (name, part) = rest.rsplit_once('-')?;
        let is_number =
            |text: &str| text.len() == DIGITS && text.bytes().all(|b| b.is_ascii_digit());
        let (part, count) =
            (Some(part).filter(|p| is_number(p))?, Some(count).filter(|c| is_number(c))?);
        let (part, count): (usize, usize) = (part.parse().ok()?, count.parse().ok()?);
        (1..=count).contains(&part).then_some((name, part, count))
    };
    split().unwrap_or((whole, 1, 1))
}

/// Every file of a split model, in order, from the path or address of one of them.
pub(crate) fn parts(file: &str) -> Vec<String> {
    let (name, _, count) = stem(file);
    match count {
        1 => vec![file.to_owned()],
        _ => (1..=count).map(|part| format!("{name}-{part:05}-of-{count:05}.gguf")).collect(),
    }
}

/// The model with quantisation `wanted`, or the default one.
pub(crate) fn choose<'a>(groups: &'a [Group], wanted: Option<&str>) -> Option<&'a Group> {
    let matching = |tag: &str| {
        let mut found: Vec<&Group> =
            groups.iter().filter(|group| has_tag(stem(group.first()).0, tag)).collect();
        // The shortest name: `model-Q4_K_M` before `model-UD-Q4_K_M`.
        found.sort_by_key(|group| group.first().len());
        found.first().copied()
    };
    match wanted {
        Some(tag) => matching(tag),
        None => DEFAULTS.iter().find_map(|tag| matching(tag)).or_else(|| groups.first()),
    }
}

/// The model that contains `file`.
pub(crate) fn with_file<'a>(groups: &'a [Group], file: &str) -> Option<&'a Group> {
    groups.iter().find(|group| group.files.iter().any(|known| known == file))
}

/// Whether `name` contains `tag` as a word. Letter case does not matter.
fn has_tag(name: &str, tag: &str) -> bool {
    let (name, tag) = (name.to_ascii_uppercase(), tag.to_ascii_uppercase());
    let starts = name.match_indices(&tag).map(|(at, _)| at);
    let is_letter = |c: char| c.is_ascii_alphanumeric();
    let mut words = starts.filter(|&at| {
        let (before, after) =
            (name[..at].chars().next_back(), name[at + tag.len()..].chars().next());
        !before.is_some_and(is_letter) && !after.is_some_and(|c| is_letter(c) || c == '_')
    });
    words.next().is_some()
}

/// The last word of `name` that is a number format: `Q4_K_M`, `IQ2_XXS`, `UD-Q4_K_XL`, `BF16`.
fn quantisation(name: &str) -> Option<String> {
    let name = name.to_ascii_uppercase();
    let starts = (0..name.len()).rev().filter(|&at| {
        let before = at.checked_sub(1).map(|before| name.as_bytes()[before]);
        name.is_char_boundary(at) && !before.is_some_and(|b| b.is_ascii_alphanumeric())
    });
    for at in starts {
        let rest = &name[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let word = &rest[..end];
        if is_format(word) {
            let unsloth = name[..at].ends_with("UD-");
            return Some(if unsloth { format!("UD-{word}") } else { word.to_owned() });
        }
    }
    None
}

fn is_format(word: &str) -> bool {
    let begins = |prefix: &str| {
        let digit = word.strip_prefix(prefix).and_then(|rest| rest.bytes().next());
        digit.is_some_and(|digit| digit.is_ascii_digit())
    };
    ["F16", "BF16", "F32", "FP16", "FP32", "FP8"].contains(&word)
        || ["Q", "IQ", "TQ", "MXFP", "NVFP"].iter().any(|prefix| begins(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[&str], tag: Option<&str>) -> Option<String> {
        let groups = groups(files.iter().copied());
        choose(&groups, tag).map(|group| group.first().to_owned())
    }

    #[test]
    fn the_default_is_llama_cpps_choice() {
        let files =
            ["m-F16.gguf", "m-Q4_0.gguf", "m-Q4_K_M.gguf", "mmproj-Q4_K_M.gguf", "README.md"];
        assert_eq!(found(&files, None).unwrap(), "m-Q4_K_M.gguf");
        assert_eq!(found(&files[..2], None).unwrap(), "m-Q4_0.gguf");
        assert_eq!(found(&["b-Q8_0.gguf", "a-Q4_0.gguf"], None).unwrap(), "b-Q8_0.gguf");
        assert_eq!(found(&["b-Q6_K.gguf", "a-F16.gguf"], None).unwrap(), "a-F16.gguf");
        let drafts = ["mtp-m.gguf", "EAGLE3-m.gguf", "x/dflash-m.gguf", "mtp-x/m.gguf"];
        assert_eq!(found(&drafts, None).unwrap(), "mtp-x/m.gguf");
        assert_eq!(
            found(&["mmproj-F16.gguf", "x.imatrix.gguf", "a.thermocline.gguf", "a.bin"], None),
            None
        );
    }

    #[test]
    fn a_quantisation_is_a_word_of_the_name() {
        let files = ["m-IQ4_XS.gguf", "m-Q4_K_S.gguf", "m-UD-Q4_K_M.gguf", "m.q4_k_m.gguf"];
        assert_eq!(found(&files, Some("q4_k_m")).unwrap(), "m.q4_k_m.gguf");
        assert_eq!(found(&files, Some("UD-Q4_K_M")).unwrap(), "m-UD-Q4_K_M.gguf");
        assert_eq!(found(&files, Some("iq4_xs")).unwrap(), "m-IQ4_XS.gguf");
        for wrong in ["Q4_K", "4_XS", "Q4_XS", "Q8_0"] {
            assert_eq!(found(&files, Some(wrong)), None, "{wrong}");
        }
        let nested = ["Q8_0/m-00002-of-00002.gguf", "Q8_0/m-00001-of-00002.gguf", "F16/m.gguf"];
        assert_eq!(found(&nested, Some("Q8_0")).unwrap(), "Q8_0/m-00001-of-00002.gguf");
    }

    #[test]
    fn parts_belong_together() {
        let files = ["m-00003-of-00003.gguf", "m-00001-of-00003.gguf", "n-1-of-2.gguf"];
        let groups = groups(files.into_iter());
        assert_eq!(groups[0].files, ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"]);
        assert!(!groups[0].is_complete() && groups[1].is_complete());
        assert_eq!(parts("x/m-00002-of-00002.gguf")[0], "x/m-00001-of-00002.gguf");
        assert_eq!(parts("m.gguf"), ["m.gguf"]);
        assert_eq!(stem("m-00004-of-00003.gguf").2, 1);
        assert_eq!(with_file(&groups, "m-00003-of-00003.gguf"), Some(&groups[0]));
    }

    #[test]
    fn labels_are_quantisations() {
        for (file, label) in [
            ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
            ("llama-7b-relu.q4.powerinfer.gguf", "Q4"),
            ("llama-7b-relu.powerinfer.gguf", "llama-7b-relu.powerinfer"),
            ("UD-IQ1_M/m-UD-IQ1_M-00001-of-00002.gguf", "UD-IQ1_M"),
            ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
            ("é-bf16.gguf", "BF16"),
        ] {
            let groups = groups([file].into_iter());
            assert_eq!(groups[0].label(), label);
        }
    }
}
