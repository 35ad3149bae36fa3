//! The templates in a model file.

use gguf::{Error, Metadata};

const DEFAULT: &str = "tokenizer.chat_template";
const NAMES: &str = "tokenizer.chat_templates";

/// Sources of a file's templates: the default template, and others by name, such as `tool_use`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Templates {
    default: Option<String>,
    named: Vec<(String, String)>,
}

impl Templates {
    /// Reads `tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for the names in
    /// `tokenizer.chat_templates`. A name without a template is skipped.
    ///
    /// # Errors
    /// A value of another type, or a text that is not UTF-8.
    pub fn from_metadata(metadata: &Metadata) -> Result<Templates, Error> {
        let default = metadata.str(DEFAULT)?.map(str::to_owned);
        let mut named = Vec::new();
        for name in metadata.str_array(NAMES)?.into_iter().flat_map(|names| names.iter()) {
            let name = String::from_utf8_lossy(name).into_owned();
            if let Some(source) = metadata.str(&format!("{DEFAULT}.{name}"))? {
                named.push((name, source.to_owned()));
            }
        }
        Ok(Templates { default, named })
    }

    /// The template called `name`; `None` if the file does not list the name. The file's other
    /// templates are not read, so they may be broken.
    ///
    /// # Errors
    /// As [`Templates::from_metadata`], for this template.
    pub fn named_in<'a>(metadata: &'a Metadata, name: &str) -> Result<Option<&'a str>, Error> {
        let mut names = metadata.str_array(NAMES)?.into_iter().flat_map(|names| names.iter());
        if names.any(|known| known == name.as_bytes()) {
            metadata.str(&format!("{DEFAULT}.{name}"))
        } else {
            Ok(None)
        }
    }

    /// The file's default template, or else the template called `default`; `None` if the file has
    /// neither.
    #[must_use]
    pub fn default_source(&self) -> Option<&str> {
        self.default.as_deref().or_else(|| self.named("default"))
    }

    /// The template called `name`; `None` if the file has no such template.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, source)| source.as_str())
    }

    /// Names of the named templates, in file order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::{Container, File, Value, Writer};

    fn read(entries: &[(&str, Value)]) -> Result<Templates, Error> {
        let mut writer = Writer::new(Container::Gguf);
        for (key, value) in entries {
            writer.set(key, value.clone()).unwrap();
        }
        let bytes = writer.in_memory().unwrap().finish().unwrap();
        let file = File::from_vec(bytes, "test.gguf").unwrap();
        Templates::from_metadata(file.metadata())
    }

    fn text(text: &[u8]) -> Value {
        Value::String(text.to_vec())
    }

    fn names(names: &[&str]) -> Value {
        Value::Array(gguf::Array::String(names.iter().collect()))
    }

    #[test]
    fn default_and_named_templates_are_read() {
        let templates = read(&[
            (DEFAULT, text(b"d")),
            (NAMES, names(&["tool_use", "gone"])),
            ("tokenizer.chat_template.tool_use", text(b"t")),
        ]);
        let templates = templates.unwrap();
        assert_eq!(templates.default_source(), Some("d"));
        assert_eq!(templates.named("tool_use"), Some("t"));
        assert_eq!(templates.names().collect::<Vec<_>>(), ["tool_use"]);
        assert_eq!(read(&[]).unwrap().default_source(), None);
    }

    #[test]
    fn a_template_is_found_despite_broken_templates() {
        let mut writer = Writer::new(Container::Gguf);
        for (key, value) in [
            (DEFAULT, text(b"\xff")),
            (NAMES, names(&["good", "bad"])),
            ("tokenizer.chat_template.good", text(b"t")),
            ("tokenizer.chat_template.bad", Value::U32(1)),
            ("tokenizer.chat_template.unlisted", text(b"u")),
        ] {
            writer.set(key, value).unwrap();
        }
        let bytes = writer.in_memory().unwrap().finish().unwrap();
        let file = File::from_vec(bytes, "test.gguf").unwrap();
        let found = |name| Templates::named_in(file.metadata(), name);
        assert_eq!(found("good").unwrap(), Some("t"));
        assert_eq!(found("unlisted").unwrap(), None);
        assert!(found("bad").is_err());
    }

    #[test]
    fn a_non_text_value_is_an_error_with_its_key() {
        let broken = read(&[(DEFAULT, text(b"\xff{{"))]).unwrap_err();
        assert!(broken.to_string().contains(DEFAULT), "{broken}");
        let number = read(&[(DEFAULT, Value::U32(1))]).unwrap_err();
        assert!(number.to_string().contains(DEFAULT), "{number}");
    }
}
