//! `thermocline quantize`.

use super::{CommonArgs, boolish, whole};
use crate::cli::failure::Failure;
use crate::cli::texts::read_file;
use crate::convert::{
    self, ImportanceFile, ImportanceMatrix, KeyOverride, Quantization, Target, TensorTypeRule,
};
use crate::gguf::Value;
use clap::Args;
use hal::format::Format;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Tokens of a chunk in importance matrices that do not state it: llama-imatrix's default.
const CHUNK_SIZE: u32 = 512;

/// Copy a model with its weights quantised to another type.
#[derive(Args, Clone, Debug)]
pub(crate) struct QuantizeArgs {
    /// Input, output, type and number of threads: in.gguf out.gguf Q4_K_M 8
    ///
    /// The input is a GGUF file, or the first file of a split model. Without an output, the file is
    /// ggml-model-TYPE.gguf beside the input. The type is a name such as Q4_K_M or its number in
    /// llama.cpp. By default, all CPUs are used.
    #[arg(value_name = "IN OUT TYPE THREADS", num_args = 0..)]
    pub(crate) words: Vec<OsString>,
    /// Show the size of the output without writing it
    #[arg(long, env = "THERMOCLINE_ARG_DRY_RUN", value_parser = boolish())]
    pub(crate) dry_run: bool,
    /// Write as many files as the input has; OUT is their prefix
    #[arg(long, env = "THERMOCLINE_ARG_KEEP_SPLIT", value_parser = boolish())]
    pub(crate) keep_split: bool,
    /// Use one type for every tensor, no mix
    #[arg(long, env = "THERMOCLINE_ARG_PURE", value_parser = boolish())]
    pub(crate) pure: bool,
    /// Type of the output matrix
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_OUTPUT_TENSOR_TYPE")]
    #[arg(value_parser = tensor_type)]
    pub(crate) output_tensor_type: Option<Format>,
    /// Type of the embedding
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_TOKEN_EMBEDDING_TYPE")]
    #[arg(value_parser = tensor_type)]
    pub(crate) token_embedding_type: Option<Format>,
    /// Type of the tensors whose names match a regular expression; repeatable
    ///
    /// PATTERN=TYPE, such as attn_v=q6_k or 'blk\.[0-3]\.ffn_down=q5_k'. The first pattern found in a
    /// name counts.
    #[arg(long, value_name = "PATTERN=TYPE", env = "THERMOCLINE_ARG_TENSOR_TYPE")]
    #[arg(value_parser = tensor_type_rule)]
    pub(crate) tensor_type: Vec<TensorTypeRule>,
    /// File with further PATTERN=TYPE, separated by spaces or line breaks
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_TENSOR_TYPE_FILE")]
    pub(crate) tensor_type_file: Option<PathBuf>,
    /// Importance matrix of the model, from `imatrix` or llama-imatrix
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_IMATRIX")]
    pub(crate) imatrix: Option<PathBuf>,
    /// Use the importance matrix only for names with NAME in them; repeatable
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_INCLUDE_WEIGHTS")]
    #[arg(requires = "imatrix", conflicts_with = "exclude_weights")]
    pub(crate) include_weights: Vec<String>,
    /// Do not use the importance matrix for names with NAME in them; repeatable
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_EXCLUDE_WEIGHTS")]
    #[arg(requires = "imatrix")]
    pub(crate) exclude_weights: Vec<String>,
    /// Set a key in the copy: KEY=int:1, float:0.5, bool:true, str:text; repeatable
    #[arg(long, value_name = "KEY=TYPE:VALUE", env = "THERMOCLINE_ARG_OVERRIDE_KV")]
    #[arg(value_parser = key_override)]
    pub(crate) override_kv: Vec<KeyOverride>,
    /// Do not quantise the output matrix
    #[arg(long, env = "THERMOCLINE_ARG_LEAVE_OUTPUT_TENSOR", value_parser = boolish())]
    pub(crate) leave_output_tensor: bool,
    /// Also requantise quantised tensors; this loses quality
    #[arg(long, env = "THERMOCLINE_ARG_ALLOW_REQUANTIZE", value_parser = boolish())]
    pub(crate) allow_requantize: bool,
    /// Replace an existing file
    #[arg(short, long, env = "THERMOCLINE_ARG_FORCE", value_parser = boolish())]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

impl QuantizeArgs {
    /// # Errors
    /// An invalid type or number of threads; too few or too many positional arguments; files that cannot be read.
    pub(crate) fn job(&self) -> Result<Quantization, Failure> {
        let QuantizeWords { input, output, target, .. } = self.read_words()?;
        Ok(Quantization {
            pure: self.pure,
            output_type: self.output_tensor_type,
            embedding_type: self.token_embedding_type,
            tensor_types: self.tensor_types()?,
            importance: self.importance()?,
            overrides: self.override_kv.clone(),
            leave_output: self.leave_output_tensor,
            requantize: self.allow_requantize,
            force: self.force,
            ..Quantization::new(input, output, target)
        })
    }

    fn tensor_types(&self) -> Result<Vec<TensorTypeRule>, Failure> {
        let mut rules = self.tensor_type.clone();
        if let Some(path) = &self.tensor_type_file {
            for word in read_file(path)?.split_whitespace() {
                rules.push(tensor_type_rule(word)?);
            }
        }
        Ok(rules)
    }

    fn importance(&self) -> Result<Option<Arc<ImportanceFile>>, Failure> {
        let Some(path) = &self.imatrix else { return Ok(None) };
        let mut matrix = ImportanceMatrix::open(path, CHUNK_SIZE)?;
        matrix.include(&self.include_weights);
        matrix.exclude(&self.exclude_weights);
        if matrix.entries.is_empty() {
            let message = "--include-weights and --exclude-weights leave no tensor";
            return Err(
                Failure::usage(message).help("each is a part of a tensor's name, such as ffn_down")
            );
        }
        Ok(Some(Arc::new(ImportanceFile { path: path.display().to_string(), matrix })))
    }

    /// The number of threads; `None` for all CPUs.
    ///
    /// # Errors
    /// As [`QuantizeArgs::job`].
    pub(crate) fn n_threads(&self) -> Result<Option<NonZeroUsize>, Failure> {
        Ok(self.read_words()?.n_threads)
    }

    /// Reads llama-quantize's positional arguments: the second is the type or the output.
    fn read_words(&self) -> Result<QuantizeWords, Failure> {
        let type_of = |word: &OsString| Target::from_str(&word.to_string_lossy());
        let is_type =
            |word: &OsString| !matches!(type_of(word), Err(convert::Error::Target { .. }));
        let usage = || {
            Failure::usage("`quantize` takes IN [OUT] TYPE [THREADS]")
                .help("for example `thermocline quantize in.gguf out.gguf Q4_K_M 8`")
        };
        let (input, rest) = self.words.split_first().ok_or_else(usage)?;
        let input = PathBuf::from(input);
        let (output, target, threads) = match rest {
            [ty, threads @ ..] if is_type(ty) => (None, ty, threads),
            [name] if name.to_string_lossy().contains(['.', '/', '\\']) => {
                let message = format!("the type is missing after '{}'", name.to_string_lossy());
                return Err(Failure::usage(message)
                    .help("for example `thermocline quantize in.gguf out.gguf Q4_K_M`"));
            }
            [output, ty, threads @ ..] => (Some(PathBuf::from(output)), ty, threads),
            [ty] => (None, ty, &[][..]),
            [] => return Err(usage()),
        };
        let target = type_of(target)?;
        let output = output
            .unwrap_or_else(|| input.with_file_name(format!("ggml-model-{}.gguf", target.name())));
        let n_threads = match threads {
            [] => None,
            [n] => {
                let n = n.to_string_lossy();
                let count = whole::<usize>(0..=4096)(&n).map_err(|why| {
                    Failure::usage(format!("invalid number of threads '{n}': {why}"))
                })?;
                NonZeroUsize::new(count)
            }
            [..] => return Err(usage()),
        };
        Ok(QuantizeWords { input, output, target, n_threads })
    }
}

/// The positional arguments of `quantize`.
struct QuantizeWords {
    input: PathBuf,
    output: PathBuf,
    target: Target,
    n_threads: Option<NonZeroUsize>,
}

/// Parses the type of a single tensor; the name of a mix is an error.
fn tensor_type(name: &str) -> Result<Format, Failure> {
    let known = || Format::ALL.iter().filter(|format| format.is_weight() && format.quantizes());
    let found = Format::from_str(name).ok().filter(|format| known().any(|known| known == format));
    found.ok_or_else(|| {
        let names: Vec<&str> = known().map(|format| format.name()).collect();
        Failure::usage(format!("unknown quantisation type `{name}`"))
            .help(format!("supported types: {}", names.join(", ")))
    })
}

/// Parses `PATTERN=TYPE`. As in llama.cpp, the pattern's letters are made small.
fn tensor_type_rule(text: &str) -> Result<TensorTypeRule, Failure> {
    let (pattern, ty) =
        text.rsplit_once('=').filter(|(pattern, _)| !pattern.is_empty()).ok_or_else(|| {
            Failure::usage(format!("--tensor-type: '{text}' is not PATTERN=TYPE"))
                .help("for example --tensor-type attn_v=q6_k")
        })?;
    let format = tensor_type(ty)?;
    Ok(TensorTypeRule::new(&pattern.to_lowercase(), format)?)
}

/// Parses `KEY=TYPE:VALUE`. As in llama.cpp, integers become unsigned.
fn key_override(text: &str) -> Result<KeyOverride, Failure> {
    let wrong = || {
        Failure::usage(format!("--override-kv: '{text}' is not KEY=TYPE:VALUE"))
            .help("TYPE is int, float, bool or str: general.name=str:Example")
    };
    let (key, typed) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(wrong)?;
    let (ty, value) = typed.split_once(':').ok_or_else(wrong)?;
    let value: Option<Value> = match ty {
        "int" => value.parse::<i64>().ok().and_then(|n| u32::try_from(n).ok()).map(Value::from),
        "float" => value.parse::<f32>().ok().map(Value::from),
        "bool" => value.parse::<bool>().ok().map(Value::Bool),
        "str" => Some(Value::from(value)),
        _ => None,
    };
    Ok(KeyOverride { key: key.to_owned(), value: value.ok_or_else(wrong)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn the_words_of_quantize_are_llama_quantizes() {
        let parsed = |words: &[&str]| {
            let words = ["thermocline", "quantize"].iter().chain(words);
            let Ok(Command::Quantize(args)) = Cli::try_parse_from(words).map(|cli| cli.command)
            else {
                panic!("the parsed command is not the expected one");
            };
            args.read_words()
        };
        let case = |words: &[&str]| {
            let words = parsed(words).unwrap();
            let output = words.output.to_string_lossy().into_owned();
            (output, words.target.name(), words.n_threads.map_or(0, NonZeroUsize::get))
        };
        assert_eq!(case(&["d/a", "b", "q4_0"]), ("b".into(), "Q4_0", 0));
        assert_eq!(case(&["d/a", "b", "q4_0", "8"]), ("b".into(), "Q4_0", 8));
        assert_eq!(case(&["d/a", "q8_0"]), ("d/ggml-model-Q8_0.gguf".into(), "Q8_0", 0));
        assert_eq!(case(&["d/a", "15", "2"]), ("d/ggml-model-Q4_K_M.gguf".into(), "Q4_K_M", 2));
        assert_eq!(case(&["d/a", "b", "2"]), ("b".into(), "Q4_0", 0));
        for (wrong, says) in [
            (&["a", "b"][..], "type `b`"),
            (&["a", "b", "q9"], "type `q9`"),
            (&["a", "b", "q4_0", "many"], "number of threads 'many'"),
            (&["a", "q4_0", "2", "3"], "takes IN [OUT] TYPE"),
        ] {
            let failure = parsed(wrong).err().unwrap();
            assert!(failure.message.contains(says), "{}", failure.message);
        }
    }

    #[test]
    fn tensor_types_are_parsed() {
        assert_eq!(tensor_type("q6_k").unwrap(), Format::Q6_K);
        assert!(tensor_type("U32").is_err());
        assert!(tensor_type("x").unwrap_err().help.unwrap().contains("Q8_0"));
    }

    #[test]
    fn patterns_and_keys_are_parsed() {
        let rule = tensor_type_rule("Attn_V=q6_k").unwrap();
        assert!(rule.pattern.is_match("blk.0.attn_v.weight") && rule.format == Format::Q6_K);
        assert!(tensor_type_rule("a=b=q8_0").unwrap().pattern.is_match("a=b"));
        for (wrong, says) in [
            ("attn_v", "PATTERN=TYPE"),
            ("=q8_0", "PATTERN=TYPE"),
            ("(=q8_0", "regular expression"),
            ("a=q9", "type `q9`"),
        ] {
            let failure = tensor_type_rule(wrong).unwrap_err();
            assert!(failure.message.contains(says), "{}", failure.message);
        }
        let value = |text: &str| key_override(text).map(|set| set.value).ok();
        assert_eq!(value("a.b=int:3"), Some(Value::U32(3)));
        assert_eq!(value("a=float:0.5"), Some(Value::F32(0.5)));
        assert_eq!(value("a=bool:true"), Some(Value::Bool(true)));
        assert_eq!(value("a=str:x:y"), Some(Value::from("x:y")));
        for wrong in ["a", "=int:1", "a=int:x", "a=int:-1", "a=bool:1", "a=list:1", "a=1"] {
            assert_eq!(value(wrong), None, "{wrong}");
        }
    }
}
