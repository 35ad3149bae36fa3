//! `thermocline tokenize`.

use crate::cli::config::TokenizeOptions;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::terminal::Terminal;

/// Prints the tokens of texts in llama-tokenize's forms.
///
/// # Errors
/// The model has no usable vocabulary, or standard output cannot be written.
pub(crate) fn run(options: &TokenizeOptions, terminal: &Terminal) -> Result<(), Failure> {
    let file = runtime::file(options.model.as_deref())?;
    let tokenizer = runtime::tokenizer(&file)?;
    for warning in tokenizer.warnings() {
        terminal.note(&warning.to_string());
    }
    let failed = |e| Failure::new(Exit::Failed, "cannot tokenize the text").caused_by(&e);
    let mut out = Output::stdout();
    let mut count = 0;
    for text in &options.texts {
        let ids = tokenizer.encode(text, options.add_special, options.parse_special);
        let ids = ids.map_err(failed)?;
        count += ids.len();
        if options.ids {
            let list: Vec<_> = ids.iter().map(u32::to_string).collect();
            out.line(&format!("[{}]", list.join(", ")))?;
            continue;
        }
        for &id in &ids {
            // A token may be part of a character, so its bytes are written unchanged.
            out.write(format!("{id:6} -> '"))?;
            out.write(tokenizer.piece(id, true).map_err(failed)?)?;
            out.line("'")?;
        }
    }
    if options.show_count {
        out.line(&format!("Total number of tokens: {count}"))?;
    }
    out.flush()
}
