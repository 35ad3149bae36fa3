//! Parsers of values that clap does not know: memory budgets, llama-bench's ranges, logit biases,
//! escapes.

use crate::predictor::ERRORS;
use hal::Bytes;
use runtime::{AssumedDevice, Budget, Sparsity};

/// Parses PowerInfer's GiB number (`7.5`; `-1` is automatic), `8GiB`, `8192MiB` or `80%`.
pub(crate) fn budget(text: &str) -> Result<Budget, String> {
    let text = text.trim();
    let at = text.find(|c: char| c != '.' && c != '-' && !c.is_ascii_digit());
    let (number, unit) = text.split_at(at.unwrap_or(text.len()));
    let wrong = || {
        format!(
            "'{text}' is not a memory size: write 8GiB, 8192MiB, 80%, a number of GiB, or -1 for the free memory minus a margin"
        )
    };
    let value: f64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.trim().to_ascii_lowercase();
    if unit.is_empty() && value == -1.0 {
        return Ok(Budget::Auto);
    }
    if value < 0.0 {
        return Err(format!(
            "'{text}' is negative; the only negative value allowed is -1, which means the free memory minus a margin"
        ));
    }
    if unit == "%" && value > 100.0 {
        return Err(format!("'{text}' exceeds the device's memory: write 0% to 100%"));
    }
    let scale: f64 = match unit.as_str() {
        "%" => {
            #[allow(clippy::cast_possible_truncation)] // a percentage needs no more digits
            return Ok(Budget::Share((value / 100.0) as f32));
        }
        "" | "gib" | "g" => 1024f64.powi(3),
        "b" => 1.0,
        "kib" | "k" => 1024.0,
        "mib" | "m" => 1024f64.powi(2),
        "tib" | "t" => 1024f64.powi(4),
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return Err(wrong()),
    };
    let bytes = value * scale;
    if bytes >= 2f64.powi(63) {
        return Err(wrong());
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // both were just excluded
    Ok(Budget::Bytes(bytes as u64))
}

/// Parses a size: `16MiB`, `4GiB`, or a number of bytes.
pub(crate) fn bytes(text: &str) -> Result<Bytes, String> {
    let wrong = || format!("'{text}' is not a size: write 16MiB, 4GiB or a number of bytes");
    if let Ok(bytes) = text.trim().parse() {
        return Ok(Bytes(bytes));
    }
    match budget(text) {
        Ok(Budget::Bytes(bytes)) => Ok(Bytes(bytes)),
        Ok(Budget::Auto | Budget::Share(_)) | Err(_) => Err(wrong()),
    }
}

/// Budgets separated by colons: one per device, or one for all devices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Budgets(pub(crate) Vec<Budget>);

pub(crate) fn budgets(text: &str) -> Result<Budgets, String> {
    text.split(':').map(budget).collect::<Result<_, _>>().map(Budgets)
}

/// Parses a name of [`Sparsity`], or a relative error.
pub(crate) fn sparsity(text: &str) -> Result<Sparsity, String> {
    Ok(match text {
        "predicted" => Sparsity::Predicted,
        "exact" => Sparsity::Exact,
        "balanced" => Sparsity::Balanced,
        "fast" => Sparsity::Fast,
        "off" => Sparsity::Off,
        other => Sparsity::Within(error_share(other).map_err(|range| {
            if other.parse::<f32>().is_ok() {
                return range;
            }
            format!("'{other}' is neither exact, balanced, fast, predicted or off, nor a relative error such as 0.05")
        })?),
    })
}

/// Parses a relative error in the range of [`ERRORS`].
pub(crate) fn error_share(text: &str) -> Result<f32, String> {
    let [least, most] = [ERRORS[0], ERRORS[ERRORS.len() - 1]];
    match text.parse::<f32>() {
        Ok(error) if (least..=most).contains(&error) => Ok(error),
        Ok(_) | Err(_) => Err(format!("'{text}' is not a relative error from {least} to {most}")),
    }
}

/// `-ngl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layers {
    /// The planner places single neurons by how often they fire.
    Auto,
    /// This number of whole layers, as far as they fit.
    Whole(usize),
}

/// Parses llama.cpp's number of layers: a count, `all` or `auto`; negative numbers are `auto`.
pub(crate) fn layers(text: &str) -> Result<Layers, String> {
    match text.trim() {
        "auto" => Ok(Layers::Auto),
        "all" => Ok(Layers::Whole(usize::MAX)),
        number => match number.parse::<i64>() {
            Ok(n) => Ok(usize::try_from(n).map_or(Layers::Auto, Layers::Whole)),
            Err(_) => {
                Err(format!("'{text}' is not a number of layers: write a count, all or auto"))
            }
        },
    }
}

/// Parses a list of numbers of layers, with llama-bench's ranges: `0,99`, `10-30+10`, `all`.
pub(crate) fn layer_list(text: &str) -> Result<List<Layers>, String> {
    let mut values = Vec::new();
    for item in text.split(',') {
        match layers(item) {
            Ok(value) => values.push(value),
            Err(why) => {
                let counts = list(item).map_err(|_| why)?;
                values.extend(counts.into_iter().map(|n| Layers::Whole(n as usize)));
            }
        }
    }
    Ok(List(values))
}

/// Parses a fraction above 0 and at most 1, or a percentage.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.trim().strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (text.trim(), 1.0),
    };
    let share = number.parse::<f64>().map(|share| share * scale);
    let share = share.ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| format!("'{text}' is not a fraction between 0 and 1, such as 0.1 or 10%"))
}

/// Parses a device of `--assume`, such as `NAME,memory=8GiB,bandwidth=1000GB/s,hand-off=20us`.
pub(crate) fn assumed(text: &str) -> Result<AssumedDevice, String> {
    let (mut device, mut keys) = (AssumedDevice::default(), Vec::new());
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((key, value)) = part.split_once('=') else {
            if let Some(name) = device.name.replace(part.to_owned()) {
                return Err(format!(
                    "'{name}' and '{part}' are two names of one device: give another device its own --assume"
                ));
            }
            continue;
        };
        let key = key.trim();
        if keys.contains(&key) {
            return Err(format!("{key}= is given twice"));
        }
        keys.push(key);
        match key {
            "memory" => match budget(value)? {
                Budget::Bytes(bytes) => device.memory = Some(bytes),
                Budget::Auto | Budget::Share(_) => {
                    return Err(format!("'{value}' is not a memory size: write 8GiB or 8192MiB"));
                }
            },
            "bandwidth" => device.bandwidth = Some(bandwidth_of(value)?),
            "rows" => device.rows = Some(bandwidth_of(value)?),
            "hand-off" => device.hand_off = Some(seconds(value)?),
            "op" => device.op = Some(seconds(value)?),
            "tflops" => device.flops = Some(flops(value)?),
            "upload" => device.upload = Some(bandwidth_of(value)?),
            "disk" => device.disk = Some(bandwidth_of(value)?),
            other => {
                return Err(format!(
                    "'{other}' is not one of memory, bandwidth, rows, hand-off, op, tflops, upload, disk"
                ));
            }
        }
    }
    Ok(device)
}

/// Parses a number and its unit, and multiplies them. `what` describes the value in the error.
fn parse_scaled(text: &str, units: &[(&str, f64)], what: &str) -> Result<f64, String> {
    let text = text.trim();
    let at = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()));
    let value = number.parse::<f64>().ok().zip(factor).map(|(value, (_, factor))| value * factor);
    value.filter(|value| value.is_finite()).ok_or_else(|| format!("'{text}' is not a {what}"))
}

fn bandwidth_of(text: &str) -> Result<f64, String> {
    let units = [("", 1e9), ("GB/s", 1e9), ("TB/s", 1e12), ("MB/s", 1e6)];
    above_zero(text, &units, "bandwidth such as 900GB/s")
}

fn flops(text: &str) -> Result<f64, String> {
    let units = [("", 1e12), ("TFLOPS", 1e12), ("GFLOPS", 1e9)];
    above_zero(text, &units, "number of operations such as 40TFLOPS")
}

fn above_zero(text: &str, units: &[(&str, f64)], what: &str) -> Result<f64, String> {
    let value = parse_scaled(text, units, what)?;
    if value > 0.0 { Ok(value) } else { Err(format!("'{text}' is not a {what}")) }
}

fn seconds(text: &str) -> Result<f64, String> {
    parse_scaled(text, &[("us", 1e-6), ("", 1e-6), ("ms", 1e-3), ("s", 1.0)], "time such as 20us")
}

/// The values of one occurrence of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List<T>(pub(crate) Vec<T>);

/// The values of all occurrences of a flag.
pub(crate) fn values<T: Copy>(lists: &[List<T>]) -> Vec<T> {
    lists.iter().flat_map(|List(values)| values.iter().copied()).collect()
}

/// Parses a list of counts.
pub(crate) fn counts(text: &str) -> Result<List<u32>, String> {
    list(text).map(List)
}

/// Maximum number of values in one list.
const MAX_LIST: usize = 10_000;

/// Parses llama-bench's lists: `4,8`, `1-8`, `1-9+2`, `1-8*2`, in any mixture.
pub(crate) fn list(text: &str) -> Result<Vec<u32>, String> {
    let mut values = Vec::new();
    for item in text.split(',') {
        range(item.trim(), &mut values).map_err(|why| format!("'{item}': {why}"))?;
    }
    Ok(values)
}

fn range(text: &str, values: &mut Vec<u32>) -> Result<(), String> {
    let number = |s: &str| s.parse::<u32>().map_err(|_| format!("'{s}' is not a count (8, 1-8)"));
    let Some((first, rest)) = text.split_once('-') else {
        values.push(number(text)?);
        return Ok(());
    };
    let (last, step, times) = match (rest.split_once('+'), rest.split_once('*')) {
        (Some((last, step)), _) => (last, number(step)?, 1),
        (None, Some((last, times))) => (last, 0, number(times)?),
        (None, None) => (rest, 1, 1),
    };
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err("the range is descending".into());
    }
    let moves = if step > 0 { times == 1 } else { times > 1 && first > 0 };
    if !moves {
        return Err("the range never reaches its end".into());
    }
    let mut value = first;
    while value <= last {
        if values.len() == MAX_LIST {
            return Err(format!("more than {MAX_LIST} values"));
        }
        values.push(value);
        let Some(next) = value.checked_mul(times).and_then(|v| v.checked_add(step)) else {
            break;
        };
        value = next;
    }
    Ok(())
}

/// Parses `P,G`: prompt tokens and generated tokens of one test.
pub(crate) fn pair(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("'{text}' is not PROMPT,GENERATED");
    let (p, g) = text.split_once(',').ok_or_else(wrong)?;
    let number = |s: &str| s.trim().parse().map_err(|_| wrong());
    Ok((number(p)?, number(g)?))
}

/// Parses `15043+1`, `15043-2.5` or `2-inf`: a token id and a logit bias.
pub(crate) fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || format!("'{text}' is not TOKEN_ID(+/-)BIAS, such as 15043+1 or 2-inf");
    let at = text.find(['+', '-']).ok_or_else(wrong)?;
    let id = text[..at].parse().map_err(|_| wrong())?;
    let bias: f32 = text[at..].parse().map_err(|_| wrong())?;
    if bias.is_nan() || bias == f32::INFINITY { Err(wrong()) } else { Ok((id, bias)) }
}

/// CPU numbers, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpus(pub(crate) Vec<usize>);

/// Limit of CPU numbers, far above the number of CPUs of any machine.
const MAX_CPUS: usize = 8192;

/// Parses llama.cpp's CPU mask: hexadecimal, the last digit for CPUs 0 to 3.
pub(crate) fn cpu_mask(text: &str) -> Result<Cpus, String> {
    let digits = text.strip_prefix("0x").or(text.strip_prefix("0X")).unwrap_or(text);
    if digits.is_empty() || digits.len() > MAX_CPUS / 4 {
        return Err(format!("a mask has 1 to {} hexadecimal digits", MAX_CPUS / 4));
    }
    let mut cpus = Vec::new();
    for (place, digit) in digits.bytes().rev().enumerate() {
        let bits = hex(digit).ok_or_else(|| format!("'{text}' is not a hexadecimal mask"))?;
        cpus.extend((0..4).filter(|bit| bits >> bit & 1 == 1).map(|bit| 4 * place + bit));
    }
    Ok(Cpus(cpus))
}

/// Parses llama.cpp's range of CPUs: `2-5`, `2-` or `-5`.
pub(crate) fn cpu_range(text: &str) -> Result<Cpus, String> {
    let wrong = || format!("'{text}' is not a range of CPUs such as 0-3");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let number = |text: &str, default| match text {
        "" => Ok(default),
        text => text.parse().ok().filter(|&cpu| cpu < MAX_CPUS).ok_or_else(wrong),
    };
    let (first, last) = (number(first, 0)?, number(last, MAX_CPUS - 1)?);
    if text == "-" || first > last {
        return Err(wrong());
    }
    Ok(Cpus((first..=last).collect()))
}

/// Replaces `\n \r \t \' \" \\ \xHH`; any other backslash stays. `None` if `\xHH` produces invalid
/// UTF-8.
///
/// Source: llama.cpp's rule for `-e`.
pub(crate) fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = tail;
        let (value, used) = match (byte, tail) {
            (b'\\', [b'n', ..]) => (b'\n', 1),
            (b'\\', [b'r', ..]) => (b'\r', 1),
            (b'\\', [b't', ..]) => (b'\t', 1),
            (b'\\', [c @ (b'\'' | b'"' | b'\\'), ..]) => (*c, 1),
            (b'\\', [b'x', high, low, ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 3),
                _ => (b'\\', 0),
            },
            _ => (*byte, 0),
        };
        out.push(value);
        rest = &rest[used..];
    }
    String::from_utf8(out).ok()
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

/// Parses a number; NaN is rejected.
///
/// # Errors
/// The text is not a number.
pub(crate) fn number(given: &str) -> Result<f32, String> {
    match given.trim().parse::<f32>() {
        Ok(number) if !number.is_nan() => Ok(number),
        Ok(_) | Err(_) => Err(format!("'{given}' is not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_of_memory_are_parsed() {
        assert_eq!(budget("8GiB"), Ok(Budget::Bytes(8 << 30)));
        assert_eq!(budget("8192MiB"), Ok(Budget::Bytes(8 << 30)));
        assert_eq!(budget("8"), Ok(Budget::Bytes(8 << 30)));
        assert_eq!(budget("0.5"), Ok(Budget::Bytes(1 << 29)));
        assert_eq!(budget("2 gb"), Ok(Budget::Bytes(2_000_000_000)));
        assert_eq!(budget("80%"), Ok(Budget::Share(0.8)));
        assert_eq!(budget("-1"), Ok(Budget::Auto));
        for wrong in
            ["", "GiB", "-2", "101%", "8 apples", "1e9", "99999999999GiB", "-1GiB", "1.2.3"]
        {
            assert!(budget(wrong).is_err(), "{wrong}");
        }
        for (wrong, why) in
            [("-2", "the only negative value allowed is -1"), ("200%", "0% to 100%"), ("x", "8GiB")]
        {
            assert!(budget(wrong).unwrap_err().contains(why), "{wrong}");
        }
    }

    #[test]
    fn budgets_of_several_devices_are_parsed() {
        let [two, four] = [Budget::Bytes(2 << 30), Budget::Bytes(4 << 30)];
        assert_eq!(budgets("2:4GiB"), Ok(Budgets(vec![two, four])));
        assert_eq!(budgets("2"), Ok(Budgets(vec![two])));
        assert!(["", ":", "2:", "2:x"].iter().all(|text| budgets(text).is_err()));
    }

    #[test]
    fn layers_and_fractions_are_parsed() {
        assert_eq!(layers("33"), Ok(Layers::Whole(33)));
        assert_eq!([layers("-1"), layers("auto")], [Ok(Layers::Auto), Ok(Layers::Auto)]);
        let counts = [0, 10, 20].map(Layers::Whole).to_vec();
        assert_eq!(layer_list("0,10-20+10"), Ok(List(counts)));
        assert_eq!(layer_list("-1,all").unwrap().0.len(), 2);
        assert!(layer_list("0,x").unwrap_err().contains("'x'"));
        assert!(layers("all").is_ok() && layers("many").is_err() && layers("").is_err());
        assert_eq!([share("0.1"), share("100%")], [Ok(0.1), Ok(1.0)]);
        assert!(["0", "1.1", "-1", "nan", "", "%"].iter().all(|text| share(text).is_err()));
    }

    #[test]
    fn assumed_devices_are_parsed() {
        let card = assumed("card, memory=8GiB,bandwidth=1TB/s,hand-off=20us").unwrap();
        assert_eq!(card.name.as_deref(), Some("card"));
        assert_eq!((card.memory, card.bandwidth), (Some(8 << 30), Some(1e12)));
        assert!((card.hand_off.unwrap() - 20e-6).abs() < 1e-12 && card.op.is_none());
        assert_eq!(assumed("bandwidth=50").unwrap().bandwidth, Some(50e9));
        assert!(assumed("a,b,memory=1GiB").unwrap_err().contains("'a' and 'b' are two names"));
        assert!(assumed("memory=1GiB,memory=2GiB").unwrap_err().contains("memory= is given twice"));
        let card = assumed("tflops=80,upload=12GB/s").unwrap();
        assert_eq!((card.flops, card.upload), (Some(80e12), Some(12e9)));
        assert_eq!(assumed("tflops=900gflops").unwrap().flops, Some(900e9));
        for wrong in ["memory=-1", "memory=80%", "bandwidth=0", "bandwidth=fast", "op=1h", "x=1"] {
            assert!(assumed(wrong).is_err(), "{wrong}");
        }
        for wrong in ["tflops=0", "tflops=12GB/s", "upload=0", "upload=-1GB/s"] {
            assert!(assumed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_are_parsed() {
        assert_eq!(list("4,8").unwrap(), [4, 8]);
        assert_eq!(list("1-4").unwrap(), [1, 2, 3, 4]);
        assert_eq!(list("1-8+3").unwrap(), [1, 4, 7]);
        assert_eq!(list("1-8*2,16").unwrap(), [1, 2, 4, 8, 16]);
        assert_eq!(list("0").unwrap(), [0]);
        assert_eq!(list("4294967295-4294967295").unwrap(), [u32::MAX]);
        for wrong in
            ["", "a", "8-1", "0-8*2", "1-8*1", "1-8+0", "1-8*0", "0-4000000000", "1,", "-1"]
        {
            assert!(list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn logit_biases_are_parsed() {
        assert_eq!(logit_bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(logit_bias("7-0.5"), Ok((7, -0.5)));
        assert_eq!(logit_bias("2-inf"), Ok((2, f32::NEG_INFINITY)));
        for wrong in ["", "5", "+1", "5+", "5+nan", "5+inf", "x+1", "99999999999+1"] {
            assert!(logit_bias(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn escapes_are_replaced() {
        assert_eq!(unescape(r"a\nb\t\\n\'\q\").unwrap(), "a\nb\t\\n'\\q\\");
        assert_eq!(unescape(r"\x41\x4\xzz").unwrap(), r"A\x4\xzz");
        assert_eq!(unescape(r"\xc3\xa9").unwrap(), "é");
        assert_eq!(unescape(r"\xff"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "[-+*,.%0-9a-zA-Z\\\\é]{0,12}") {
            let _ = (layers(&text), share(&text), assumed(&text));
            let _ = (budget(&text), list(&text), pair(&text), logit_bias(&text), unescape(&text));
        }
    }

    #[test]
    fn cpu_masks_and_ranges_are_parsed() {
        let mask = |text| cpu_mask(text).map(|cpus| cpus.0);
        assert_eq!(mask("0x5"), Ok(vec![0, 2]));
        assert_eq!(mask("F0"), Ok(vec![4, 5, 6, 7]));
        assert_eq!(mask("100000000000000000"), Ok(vec![68]));
        assert_eq!(mask("0"), Ok(vec![]));
        for wrong in ["", "0x", "g", "-1", "0x 1", &"1".repeat(2049)] {
            assert!(cpu_mask(wrong).is_err(), "{wrong}");
        }
        let range = |text| cpu_range(text).map(|cpus| cpus.0);
        assert_eq!(range("2-4"), Ok(vec![2, 3, 4]));
        assert_eq!(range("-1"), Ok(vec![0, 1]));
        assert_eq!(range("8190-"), Ok(vec![8190, 8191]));
        for wrong in ["", "-", "3", "4-2", "0-8192", "a-b", "1-2-3"] {
            assert!(cpu_range(wrong).is_err(), "{wrong}");
        }
    }
}
