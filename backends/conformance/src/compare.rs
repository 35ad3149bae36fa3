//! Compares the outputs of a device with those of the oracle.

use crate::rig::{Data, Output};

/// Whether `got` matches `expected`: words to the bit, floats by normalised mean squared error.
pub(crate) fn compare(expected: &[Output], got: &[Output], tolerance: f64) -> Result<(), String> {
    if expected.len() != got.len() {
        return Err(format!("{} outputs instead of {}", got.len(), expected.len()));
    }
    for (expected, got) in expected.iter().zip(got) {
        let name = &got.name;
        match (&expected.data, &got.data) {
            (Data::Floats(expected), Data::Floats(got)) => floats(name, expected, got, tolerance)?,
            (Data::Words(expected), Data::Words(got)) => words(name, expected, got)?,
            (Data::Floats(_), Data::Words(_)) | (Data::Words(_), Data::Floats(_)) => {
                return Err(format!("{name}: floats on one device, words on the other"));
            }
        }
    }
    Ok(())
}

/// Whether two runs have the same bits.
pub(crate) fn same_bits(first: &[Output], second: &[Output]) -> Result<(), String> {
    let bits = |output: &Output| match &output.data {
        Data::Floats(values) => values.iter().map(|v| v.to_bits()).collect(),
        Data::Words(words) => words.clone(),
    };
    for (first, second) in first.iter().zip(second) {
        words(&first.name, &bits(first), &bits(second))?;
    }
    Ok(())
}

fn words(name: &str, expected: &[u32], got: &[u32]) -> Result<(), String> {
    if expected.len() != got.len() {
        return Err(format!("{name} has {} words instead of {}", got.len(), expected.len()));
    }
    match expected.iter().zip(got).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(i) => Err(format!("{name}[{i}] is {:#x} instead of {:#x}", got[i], expected[i])),
    }
}

fn floats(name: &str, expected: &[f32], got: &[f32], tolerance: f64) -> Result<(), String> {
    if expected.len() != got.len() {
        return Err(format!("{name} has {} values instead of {}", got.len(), expected.len()));
    }
    let differs = |(a, b): (&f32, &f32)| a.is_finite() != b.is_finite() || a.is_nan() != b.is_nan();
    if let Some(i) = expected.iter().zip(got).position(differs) {
        return Err(format!("{name}[{i}] is {} instead of {}", got[i], expected[i]));
    }
    let pairs = expected.iter().zip(got).enumerate().filter(|(_, (a, _))| a.is_finite());
    let (mut error, mut size) = (0.0, 0.0);
    let mut worst = (0.0, String::new());
    for (i, (&a, &b)) in pairs {
        let difference = f64::from(a) - f64::from(b);
        error += difference * difference;
        size += f64::from(a) * f64::from(a);
        if difference.abs() > worst.0 {
            worst = (difference.abs(), format!("{name}[{i}] is {b} instead of {a}"));
        }
    }
    if error <= tolerance * size {
        Ok(())
    } else {
        Err(format!("{} (error {:.1e})", worst.1, error / size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_measured_against_the_size_of_the_values() {
        assert!(floats("y", &[1000.0, 0.0], &[1000.1, 0.0], 1e-7).is_ok());
        assert!(floats("y", &[1.0, 0.0], &[1.0, 0.1], 1e-7).is_err());
        assert!(floats("y", &[0.0, 0.0], &[0.0, 0.0], 1e-7).is_ok());
        assert!(floats("y", &[0.0], &[1e-30], 1e-7).is_err());
        assert!(floats("y", &[1.0], &[f32::NAN], 1e-7).is_err());
        assert!(floats("y", &[f32::NAN], &[0.0], 1e-7).is_err());
        assert!(floats("y", &[1.0, 2.0], &[1.0], 1e-7).is_err());
    }

    #[test]
    fn words_are_compared_to_the_bit() {
        assert!(words("ids", &[1, 2], &[1, 2]).is_ok());
        assert!(words("ids", &[1, 2], &[1, 3]).is_err());
        assert!(words("ids", &[1, 2], &[1]).is_err());
    }
}
