//! `thermocline tokenize`.

use crate::cli::args::TokenizeArgs;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::terminal::Terminal;

/// Prints the tokens of texts, as llama-tokenize does.
///
/// # Errors
/// The model has no usable vocabulary, a text cannot be read, or standard output cannot be written.
pub(crate) fn run(args: &TokenizeArgs, terminal: &Terminal) -> Result<(), Failure> {
    let texts = args.texts()?;
    let file = runtime::file(args.model.as_deref())?;
    let tokenizer = runtime::tokenizer(&file)?;
    for warning in tokenizer.warnings() {
        terminal.note(&warning.to_string());
    }
    let failed = |e| Failure::new(Exit::Failed, "cannot tokenize the text").caused_by(&e);
    let mut out = Output::of_model(args.raw);
    let mut count = 0;
    for text in &texts {
        let ids = tokenizer.encode(text, !args.no_bos, !args.no_parse_special);
        let ids = ids.map_err(failed)?;
        count += ids.len();
        if args.ids {
            let list: Vec<_> = ids.iter().map(u32::to_string).collect();
            out.line(&format!("[{}]", list.join(", ")))?;
            continue;
        }
        for &id in &ids {
            // A token may be part of a character, so a pipe gets its bytes unchanged.
            out.write(format!("{id:6} -> '"))?;
            out.bytes(tokenizer.piece(id, true).map_err(failed)?)?;
            out.line("'")?;
        }
    }
    if args.show_count {
        out.line(&format!("Total number of tokens: {count}"))?;
    }
    out.flush()
}
