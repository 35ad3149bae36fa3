//! Chooses the template of a conversation.

use crate::chat::{Dialogue, Template, Templates, builtin, builtin_names};
use crate::cli::args::{TemplateArgs, TemplateChoice};
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;
use crate::gguf;
use crate::tokenizer::Tokenizer;
use runtime::dialogue::with_special_tokens;

const SELECT_ANOTHER: &str =
    "--chat-template NAME or --chat-template-file FILE selects another template";

/// A dialogue with the user's template, otherwise with the model file's, otherwise in plain text.
///
/// # Errors
/// [`Exit::BadModel`] for a broken template in the file, [`Exit::Usage`] for a broken template from
/// the user or an unknown name.
pub(crate) fn dialogue(
    args: &TemplateArgs,
    file: &gguf::File,
    tokenizer: &Tokenizer,
    terminal: &Terminal,
) -> Result<Dialogue, Failure> {
    let bad_file = |e: gguf::Error| {
        Failure::new(Exit::BadModel, "cannot read the chat template")
            .caused_by(&e)
            .help(SELECT_ANOTHER)
    };
    let chosen = match &args.chat_template {
        Some(TemplateChoice::Source(source)) => compile_template(source, Exit::Usage)?,
        Some(TemplateChoice::Named(name)) => {
            match (Templates::named_in(file.metadata(), name), builtin(name)) {
                (Ok(Some(source)), _) => compile_template(source, Exit::BadModel)?,
                // The name is a built-in template, so a broken one in the file does not matter.
                (_, Some(source)) => compile_template(source, Exit::Usage)?,
                (Err(e), None) => return Err(bad_file(e)),
                (Ok(None), None) => return Err(unknown_template(name, file)),
            }
        }
        None => {
            let templates = Templates::from_metadata(file.metadata()).map_err(bad_file)?;
            match templates.default_source() {
                Some(source) => compile_template(source, Exit::BadModel)?,
                None => {
                    terminal.note(
                        "the model has no chat template, so turns are written as plain text (User: ... Assistant: ...); --chat-template selects one",
                    );
                    Dialogue::plain()
                }
            }
        }
    };
    let mut dialogue = with_special_tokens(chosen, tokenizer);
    dialogue.variables = args.variables();
    Ok(dialogue)
}

fn compile_template(source: &str, exit: Exit) -> Result<Dialogue, Failure> {
    let template = Template::compile(source).map_err(|e| {
        let failure = Failure::new(exit, "cannot use the chat template").caused_by(&e);
        if exit == Exit::BadModel { failure.help(SELECT_ANOTHER) } else { failure }
    })?;
    Ok(Dialogue::with_template(template))
}

fn unknown_template(name: &str, file: &gguf::File) -> Failure {
    let templates = Templates::from_metadata(file.metadata()).unwrap_or_default();
    let mut known: Vec<&str> = templates.names().collect();
    for name in builtin_names() {
        known.push(name);
    }
    Failure::usage(format!("unknown chat template '{name}'")).help(format!(
        "known names: {}; a template text contains {{{{, {{% or a space",
        known.join(", ")
    ))
}
