//! `thermocline embed`.

use crate::cli::args::{EmbedArgs, Form};
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::terminal::Terminal;
use runtime::{Opened, RankPrompt, Runtime};
use scheduler::{EmbedError, Pooling, Scheduler, SchedulerOptions, SubmitError};
use std::fmt::Write;

/// Number of values of an embedding that are printed if there are several.
const SHOWN: usize = 16;

/// Prints the embeddings of texts, or their scores with a ranking model.
///
/// # Errors
/// The model cannot be loaded, a text is too long, or standard output cannot be written.
pub(crate) fn run(args: &EmbedArgs, terminal: &Terminal) -> Result<(), Failure> {
    let texts = args.texts()?;
    let separator = args.pair_separator()?;
    let runtime = Runtime::new(args.model.options(), terminal.observer())?;
    let Opened { model, tokenizer } = runtime.open(args.model.model.as_deref())?;
    let pooling = args.pooling.unwrap_or_else(|| Pooling::of_model(&model));
    if pooling == Pooling::Rank && model.rank.is_none() {
        return Err(Failure::new(Exit::BadModel, "this model has no head for ranking")
            .help("--pooling mean, cls or last gives embeddings"));
    }
    let prompt = RankPrompt::from_metadata(model.file.metadata(), &tokenizer);
    let mut inputs = Vec::with_capacity(texts.len());
    for (number, text) in texts.iter().enumerate() {
        let pair = text.split_once(&separator).filter(|_| pooling == Pooling::Rank);
        let ids = match pair {
            Some((query, document)) => prompt.ids(query, document, &tokenizer),
            None => tokenizer.encode(text, true, true),
        };
        inputs.push(ids.map_err(|e| {
            Failure::new(Exit::Failed, format!("cannot tokenize text {number}")).caused_by(&e)
        })?);
    }
    let labels = model.file.metadata();
    let labels = labels.str_array(&format!("{}.classifier.output_labels", model.spec.name));
    let labels = labels.ok().flatten().map(|labels| {
        labels.iter().map(|label| String::from_utf8_lossy(label).into_owned()).collect()
    });
    let n_embedding = model.n_embedding();
    let loaded = runtime::Model::load(&runtime, Opened { model, tokenizer })?;
    let scheduler = Scheduler::start_model(loaded, SchedulerOptions::default())
        .map_err(|e| Failure::chain(Exit::Failed, &e))?;
    let mut vectors = Vec::new();
    for (number, ids) in inputs.into_iter().enumerate() {
        let values = scheduler.embed(ids, pooling).map_err(|error| failure(number, &error))?;
        match pooling {
            Pooling::None => vectors.extend(values.chunks(n_embedding).map(<[f32]>::to_vec)),
            Pooling::Mean | Pooling::First | Pooling::Last | Pooling::Rank => vectors.push(values),
        }
    }
    if pooling != Pooling::Rank {
        vectors.iter_mut().for_each(|vector| normalise(vector, args.embd_normalize));
    }
    let printed = Printed { vectors, texts, pooling, labels, whole: args.embd_normalize == 0 };
    let mut out = Output::stdout();
    out.write(match args.embd_output_format {
        None => printed.text(),
        Some(Form::Array) => printed.array() + "\n",
        Some(Form::Json) => printed.json(false),
        Some(Form::JsonWithSimilarities) => printed.json(true),
        Some(Form::Raw) => printed.raw(),
    })?;
    out.flush()
}

fn failure(number: usize, error: &EmbedError) -> Failure {
    let failure = |what: &str| Failure::new(Exit::Failed, format!("text {number} {what}"));
    match error {
        EmbedError::Refused(SubmitError::PromptTooLong { n_prompt, n_ctx }) => {
            failure(&format!("has {n_prompt} tokens, but the context has {n_ctx}"))
                .help("-c N makes the context larger, up to the length the model was trained with")
        }
        EmbedError::Refused(SubmitError::Empty) => failure("has no tokens"),
        EmbedError::Refused(_) | EmbedError::NoHead | EmbedError::Failed(_) | _ => {
            failure("cannot be embedded").caused_by(error)
        }
    }
}

/// Divides the values by their norm, with llama.cpp's numbers: -1 for none, 0 for the largest
/// absolute value, scaled to 32760, and otherwise the p-norm.
fn normalise(values: &mut [f32], p: i32) {
    let absolute = || values.iter().map(|x| f64::from(x.abs()));
    let norm = match p {
        ..=-1 => 1.0,
        0 => absolute().fold(0.0, f64::max) / 32760.0,
        _ => absolute().map(|x| x.powi(p)).sum::<f64>().powf(1.0 / f64::from(p)),
    };
    let factor = if norm > 0.0 { 1.0 / norm } else { 0.0 };
    #[allow(clippy::cast_possible_truncation)] // embeddings are in single precision
    values.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
}

/// The cosine of the angle between two vectors; 1 for two zero vectors.
fn similarity(a: &[f32], b: &[f32]) -> f64 {
    let product = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    };
    match (product(a, a), product(b, b)) {
        (0.0, 0.0) => 1.0,
        (0.0, _) | (_, 0.0) => 0.0,
        (aa, bb) => product(a, b) / (aa.sqrt() * bb.sqrt()),
    }
}

/// Embeddings and how they are printed.
struct Printed {
    /// One for each text, or for each token of all texts.
    vectors: Vec<Vec<f32>>,
    texts: Vec<String>,
    pooling: Pooling,
    /// Names of a ranking model's outputs; `None` without names.
    labels: Option<Vec<String>>,
    /// Whether values are printed without decimals.
    whole: bool,
}

impl Printed {
    fn list(&self, vector: &[f32], separator: &str) -> String {
        let decimals = if self.whole { 0 } else { 7 };
        let values = vector.iter().map(|value| format!("{value:.decimals$}"));
        values.collect::<Vec<_>>().join(separator)
    }

    fn raw(&self) -> String {
        self.vectors.iter().map(|vector| self.list(vector, " ") + "\n").collect()
    }

    fn array(&self) -> String {
        let lists = self.vectors.iter().map(|vector| format!("[{}]", self.list(vector, ",")));
        format!("[{}]", lists.collect::<Vec<_>>().join(","))
    }

    fn json(&self, similarities: bool) -> String {
        let data = self.vectors.iter().enumerate().map(|(index, vector)| {
            let list = self.list(vector, ",");
            format!(
                "    {{\n      \"object\": \"embedding\",\n      \"index\": {index},\n      \"embedding\": [{list}]\n    }}"
            )
        });
        let data = data.collect::<Vec<_>>().join(",\n");
        let mut out = format!("{{\n  \"object\": \"list\",\n  \"data\": [\n{data}\n  ]");
        if similarities && self.vectors.len() > 1 {
            let rows = self.vectors.iter().map(|a| {
                let row = self.vectors.iter().map(|b| format!("{:6.2}", similarity(a, b)));
                format!("    [{} ]", row.collect::<Vec<_>>().join(", "))
            });
            let rows = rows.collect::<Vec<_>>().join(",\n");
            let _ = write!(out, ",\n  \"cosineSimilarity\": [\n{rows}\n  ]");
        }
        out + "\n}\n"
    }

    fn text(&self) -> String {
        match self.pooling {
            Pooling::Rank => self.scores(),
            Pooling::None => self.beginnings(),
            Pooling::Mean | Pooling::First | Pooling::Last => self.beginnings() + &self.matrix(),
        }
    }

    fn scores(&self) -> String {
        let mut out = String::new();
        for (number, outputs) in self.vectors.iter().enumerate() {
            for (i, score) in outputs.iter().enumerate() {
                let _ = write!(out, "rerank score {number}: {score:8.3}");
                let label = self.labels.as_ref().and_then(|labels| labels.get(i));
                let _ = match label.filter(|_| outputs.len() > 1) {
                    Some(label) => writeln!(out, " [{label}]"),
                    None => writeln!(out),
                };
            }
        }
        out
    }

    /// A line for each embedding: all of its values if it is the only one.
    fn beginnings(&self) -> String {
        let mut out = String::new();
        let shown = if self.vectors.len() > 1 { SHOWN } else { usize::MAX };
        for (number, vector) in self.vectors.iter().enumerate() {
            let _ = write!(out, "embedding {number}: ");
            for value in vector.iter().take(shown) {
                let _ = if self.whole {
                    write!(out, "{value:6.0} ")
                } else {
                    write!(out, "{value:9.6} ")
                };
            }
            out.push('\n');
        }
        out
    }

    /// The cosine similarities of all pairs of texts; empty for one text.
    fn matrix(&self) -> String {
        if self.vectors.len() < 2 {
            return String::new();
        }
        let mut out = "\ncosine similarity matrix:\n\n".to_owned();
        let beginning = |text: &str, n| text.chars().take(n).collect::<String>();
        for text in &self.texts {
            let _ = write!(out, "{:>6} ", beginning(text, 6));
        }
        out.push('\n');
        for (a, text) in self.vectors.iter().zip(&self.texts) {
            for b in &self.vectors {
                let _ = write!(out, "{:6.2} ", similarity(a, b));
            }
            let _ = writeln!(out, "{}", beginning(text, 10));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_those_of_llama_cpp() {
        let normed = |p| {
            let mut values = [3.0, -4.0];
            normalise(&mut values, p);
            values
        };
        assert_eq!(normed(-1), [3.0, -4.0]);
        assert_eq!(normed(0), [24570.0, -32760.0]);
        assert_eq!(normed(1), [3.0 / 7.0, -4.0 / 7.0]);
        assert_eq!(normed(2), [0.6, -0.8]);
        let mut zeros = [0.0; 2];
        normalise(&mut zeros, 2);
        assert_eq!(zeros, [0.0; 2]);
        assert!((similarity(&[1.0, 0.0], &[1.0, 1.0]) - 0.5f64.sqrt()).abs() < 1e-12);
        assert_eq!([similarity(&zeros, &zeros), similarity(&zeros, &[1.0, 0.0])], [1.0, 0.0]);
    }

    #[test]
    fn forms_are_those_of_llama_embedding() {
        let mut printed = Printed {
            vectors: vec![vec![0.6, -0.8], vec![1.0, 0.0]],
            texts: vec!["a text".to_owned(), "x".to_owned()],
            pooling: Pooling::Mean,
            labels: None,
            whole: false,
        };
        assert_eq!(printed.array(), "[[0.6000000,-0.8000000],[1.0000000,0.0000000]]");
        assert_eq!(printed.raw(), "0.6000000 -0.8000000\n1.0000000 0.0000000\n");
        let json: serde_json::Value = serde_json::from_str(&printed.json(true)).unwrap();
        assert_eq!(json["data"][1]["embedding"][0], 1.0);
        assert_eq!(json["cosineSimilarity"], serde_json::json!([[1.0, 0.6], [0.6, 1.0]]));
        let text = printed.text();
        assert!(text.starts_with("embedding 0:  0.600000 -0.800000 \n"), "{text}");
        assert!(text.ends_with("  0.60   1.00 x\n"), "{text}");
        printed.pooling = Pooling::Rank;
        printed.labels = Some(vec!["yes".to_owned(), "no".to_owned()]);
        assert!(printed.text().starts_with("rerank score 0:    0.600 [yes]\n"));
    }
}
