//! Options of `convert`, `quantize` and `split`.

use crate::cli::args::{ContainerName, ConvertArgs, OutTypeName, QuantizeArgs, SplitArgs};
use crate::cli::failure::Failure;
use crate::convert::{Conversion, Limit, OutType, Quantization, Target};
use crate::gguf::Container;
use hal::format::Format;
use std::str::FromStr;

/// Maximum number of tensors per file without a given limit; llama.cpp's default.
const MAX_TENSORS: usize = 128;

/// `thermocline convert`.
pub(crate) fn conversion(args: &ConvertArgs) -> Conversion {
    Conversion {
        folder: args.model_folder.clone(),
        predictor: args.predictor_folder.clone(),
        output: args.outfile.clone(),
        out_type: match args.outtype {
            OutTypeName::F32 => OutType::F32,
            OutTypeName::F16 => OutType::F16,
            OutTypeName::Bf16 => OutType::Bf16,
            OutTypeName::Q8_0 => OutType::Q8_0,
            OutTypeName::Auto => OutType::Auto,
        },
        container: args.container.map(|container| match container {
            ContainerName::Gguf => Container::Gguf,
            ContainerName::Pwri => Container::PowerInfer,
        }),
        pre: args.pre.clone(),
        name: args.model_name.clone(),
        force: args.force,
    }
}

/// `thermocline quantize`.
///
/// # Errors
/// An unknown or unsupported type.
pub(crate) fn quantization(args: &QuantizeArgs) -> Result<Quantization, Failure> {
    Ok(Quantization {
        input: args.input.clone(),
        output: args.outfile.clone(),
        target: Target::from_str(&args.target)?,
        pure: args.pure,
        output_type: args.output_tensor_type.as_deref().map(format).transpose()?,
        embedding_type: args.token_embedding_type.as_deref().map(format).transpose()?,
        leave_output: args.leave_output_tensor,
        requantize: args.allow_requantize,
        force: args.force,
    })
}

/// The type of a single tensor, as opposed to a mix.
fn format(name: &str) -> Result<Format, Failure> {
    let known: Vec<Format> = Target::all().filter_map(Target::format).collect();
    let found = Format::from_str(name).ok().filter(|format| known.contains(format));
    found.ok_or_else(|| {
        let mut names: Vec<&str> = known.iter().map(|format| format.name()).collect();
        names.dedup();
        Failure::usage(format!("tensors cannot be quantised to `{name}`"))
            .help(format!("types: {}", names.join(", ")))
    })
}

/// The limit of `thermocline split`.
///
/// # Errors
/// An invalid size.
pub(crate) fn limit(args: &SplitArgs) -> Result<Limit, Failure> {
    let Some(size) = &args.split_max_size else {
        return match args.split_max_tensors.unwrap_or(MAX_TENSORS) {
            0 => Err(Failure::usage("--split-max-tensors: a file has at least one tensor")),
            n => Ok(Limit::Tensors(n)),
        };
    };
    let wrong =
        || Failure::usage(format!("--split-max-size: '{size}' is not a number with M or G"));
    let unit = match size.chars().last() {
        Some('M' | 'm') => 1_000_000,
        Some('G' | 'g') => 1_000_000_000,
        Some(_) | None => return Err(wrong()),
    };
    let number = size[..size.len() - 1].parse::<u64>().ok().filter(|&n| n > 0);
    number.and_then(|n| n.checked_mul(unit)).map(Limit::Bytes).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::Parser;

    fn split(words: &[&str]) -> Result<Limit, Failure> {
        let words = ["thermocline", "split", "a", "b"].iter().chain(words);
        let crate::cli::args::Command::Split(args) = Cli::try_parse_from(words).unwrap().command
        else {
            panic!("another command");
        };
        limit(&args)
    }

    #[test]
    fn limits() {
        assert_eq!(split(&[]).unwrap(), Limit::Tensors(128));
        assert_eq!(split(&["--split-max-size", "3G"]).unwrap(), Limit::Bytes(3_000_000_000));
        assert_eq!(split(&["--split-max-size", "500M"]).unwrap(), Limit::Bytes(500_000_000));
        for wrong in ["", "G", "3", "3T", "-1G", "0M", "99999999999999999999G", "\u{e9}"] {
            assert!(split(&[&format!("--split-max-size={wrong}")]).is_err(), "{wrong}");
        }
        assert!(split(&["--split-max-tensors", "0"]).is_err());
    }

    #[test]
    fn types_of_one_tensor() {
        assert_eq!(format("q6_k").unwrap(), Format::Q6_K);
        assert!(format("U32").is_err() && format("x").unwrap_err().help.unwrap().contains("Q8_0"));
    }
}
