//! A loaded model: converts text, opens sequences and generates.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A sequence of tokens and its blocks of the KV cache, opened by [`Model::sequence`].
pub use engine::Sequence;
use engine::{Engine, EngineOptions};
use text::chat::{Conversation, Dialogue, Template, Templates};
use text::sample::{Sampler, SamplerConfig};
use text::tokenizer::Tokenizer;

use crate::dialogue;
use crate::generate::{Generator, Settings, Tokens};
use crate::notice::{SharedObserver, SilentObserver};
use crate::open::Opened;
use crate::options::Options;
use crate::runtime::Runtime;
use crate::{Error, Result};

/// A model that is loaded and ready to run.
pub struct Model {
    engine: Engine,
    tokenizer: Tokenizer,
    sampler: Option<Sampler>,
    settings: Settings,
    interrupt: Arc<AtomicBool>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("file", &self.file().name()).finish_non_exhaustive()
    }
}

impl Model {
    /// Opens and loads a GGUF file.
    ///
    /// # Errors
    /// A file that is not a model, devices that cannot be used, too little memory.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Model> {
        Model::open_observed(Some(path.as_ref()), options, Arc::new(SilentObserver))
    }

    /// Loads the built-in story model.
    ///
    /// # Errors
    /// Devices that cannot be used, too little memory.
    pub fn built_in(options: &Options) -> Result<Model> {
        Model::open_observed(None, options, Arc::new(SilentObserver))
    }

    /// As [`Model::open`], or without a path as [`Model::built_in`], with notices and progress for
    /// `observer`.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_observed(
        path: Option<&Path>,
        options: &Options,
        observer: SharedObserver,
    ) -> Result<Model> {
        let runtime = Runtime::new(options.clone(), observer)?;
        let opened = runtime.open(path)?;
        Model::load(&runtime, opened)
    }

    /// Loads an opened model.
    ///
    /// # Errors
    /// Too little memory; errors of devices.
    pub fn load(runtime: &Runtime, opened: Opened) -> Result<Model> {
        let Opened { model, tokenizer } = opened;
        let placing = runtime.placing(&model);
        let n_ctx = runtime.context(&model, &placing);
        let settings = EngineOptions { placing, ..runtime.settings(&model, n_ctx) };
        let engine = runtime.load(&model, settings)?;
        Ok(Model::new(engine, tokenizer))
    }

    /// A model from an existing engine.
    #[must_use]
    pub fn new(engine: Engine, tokenizer: Tokenizer) -> Model {
        let (sampler, settings) = (None, Settings::default());
        Model { engine, tokenizer, sampler, settings, interrupt: Arc::default() }
    }

    /// The engine and the tokenizer, for a program that runs its steps itself.
    #[must_use]
    pub fn into_parts(self) -> (Engine, Tokenizer) {
        (self.engine, self.tokenizer)
    }

    /// The model file.
    #[must_use]
    pub fn file(&self) -> &gguf::File {
        &self.engine.model().file
    }

    /// The tokenizer of the model.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The engine, with the placement and the devices.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, for single steps.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The context size in tokens, shared by all sequences.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.engine.n_ctx()
    }

    /// A flag that ends a generation. Any thread may set it; the caller must clear it before the
    /// next generation.
    #[must_use]
    pub fn interrupt(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.interrupt)
    }

    /// The tokens of a text at the start of a sequence: names of special tokens are
    /// parsed, and a BOS token is added if the vocabulary requires one.
    ///
    /// # Errors
    /// [`Error::Text`]; [`Error::EmptyPrompt`] for a text without tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.tokenizer.encode(text, true, true).map_err(Error::Text)?;
        if ids.is_empty() {
            ids.extend(self.tokenizer.bos());
        }
        if ids.is_empty() { Err(Error::EmptyPrompt) } else { Ok(ids) }
    }

    /// A new sequence without tokens.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        self.engine.new_sequence()
    }

    /// Continues `prompt`. The common beginning of `sequence` and `prompt` is kept, the sequence's
    /// other tokens are dropped, and the rest of the prompt is computed before this returns.
    /// Afterwards the sequence contains the prompt and the generated tokens. [`Tokens::finish`]
    /// returns the statistics.
    ///
    /// # Errors
    /// [`Error::Sample`] for invalid settings of the sampler; errors of the engine.
    pub fn generate<'a>(
        &'a mut self,
        sequence: &'a mut Sequence,
        prompt: &[u32],
        sampler: &SamplerConfig,
        settings: &Settings,
    ) -> Result<Tokens<'a>> {
        let sampler = Sampler::new(sampler, &self.tokenizer)?;
        self.settings = settings.clone();
        let generator = Generator {
            engine: &mut self.engine,
            tokenizer: &self.tokenizer,
            sampler: self.sampler.insert(sampler),
            settings: &self.settings,
            interrupt: &self.interrupt,
        };
        Ok(generator.start(sequence, prompt)?)
    }

    /// The chat template of the model; plain text (`User: ...`) if the file has none.
    ///
    /// # Errors
    /// [`Error::Template`], [`Error::File`].
    pub fn dialogue(&self) -> Result<Dialogue> {
        let templates = Templates::from_metadata(self.file().metadata()).map_err(Error::File)?;
        let dialogue = match templates.default_source() {
            Some(source) => {
                Dialogue::with_template(Template::compile(source).map_err(Error::Template)?)
            }
            None => Dialogue::plain(),
        };
        Ok(dialogue::with_special_tokens(dialogue, &self.tokenizer))
    }

    /// The prompt for the next answer of a conversation, and `settings` that stop at the template's
    /// end of an answer and keep the tokens that mark reasoning.
    ///
    /// # Errors
    /// [`Error::Template`], [`Error::Text`].
    pub fn prompt(
        &self,
        dialogue: &Dialogue,
        conversation: &Conversation,
        settings: &Settings,
    ) -> Result<(Vec<u32>, Settings)> {
        let prompt = dialogue.prompt(conversation).map_err(Error::Template)?;
        let ids = dialogue::ids(&prompt.text, &self.tokenizer).map_err(Error::Text)?;
        let ends = dialogue::ends(dialogue, &self.tokenizer);
        let mut settings = settings.clone();
        settings.written_tokens.extend(dialogue::reasoning_marks(&ends, &self.tokenizer));
        settings.end_tokens.extend(ends.tokens);
        settings.stops.extend(ends.stops);
        Ok((ids, settings))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Seek, SeekFrom, Write};
    use std::path::PathBuf;

    use hal::Bytes;

    use super::*;
    use crate::embedded;
    use crate::notice::{Notice, Observer, Task};

    /// Changes the last byte of a file in place when weights are loaded.
    struct Writing(PathBuf);

    impl Observer for Writing {
        fn notice(&self, _: &Notice) {}

        fn progress(&self, task: Task, done: Bytes, _: Bytes) {
            if (task, done) == (Task::Load, Bytes(0)) {
                // File systems have a clock of a few milliseconds.
                std::thread::sleep(std::time::Duration::from_millis(20));
                let mut file = fs::File::options().write(true).open(&self.0).unwrap();
                file.seek(SeekFrom::End(-1)).unwrap();
                file.write_all(&[1]).unwrap();
            }
        }
    }

    #[test]
    fn a_file_that_is_written_to_while_it_is_loaded_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["model.gguf", "other.gguf"].map(|name| folder.path().join(name));
        for path in [&path, &other] {
            fs::write(path, embedded::BYTES).unwrap();
        }
        let load = |written: &Path| {
            let observer = Arc::new(Writing(written.to_owned()));
            let runtime = Runtime::cpu(Options::default(), observer);
            let opened = runtime.open(Some(path.as_path())).unwrap();
            Model::load(&runtime, opened)
        };
        load(&other).unwrap();
        let Err(Error::File(error)) = load(&path) else { panic!("the file is written to") };
        assert!(matches!(error.problem(), gguf::Problem::SourceChanged), "{error}");
    }
}
