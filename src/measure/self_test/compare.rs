//! Compares a device's results with the CPU's.

/// An output of a case, as numbers.
#[derive(Clone, Debug)]
pub(super) struct Output {
    pub(super) name: &'static str,
    pub(super) values: Vec<f32>,
    /// Allowed normalised mean squared error.
    pub(super) tolerance: f64,
}

/// The first output that differs, in words; `None` if all are right.
pub(super) fn difference(expected: &[Output], got: &[Output]) -> Option<String> {
    expected.iter().zip(got).find_map(|(expected, got)| {
        let (name, tolerance) = (expected.name, expected.tolerance);
        differs(&expected.values, &got.values, tolerance).map(|what| format!("{name}{what}"))
    })
}

fn differs(expected: &[f32], got: &[f32], tolerance: f64) -> Option<String> {
    let at = |i: usize| format!("[{i}] is {} instead of {}", got[i], expected[i]);
    let (mut error, mut size, mut worst) = (0.0, 0.0, (0.0, 0));
    for (i, (&a, &b)) in expected.iter().zip(got).enumerate() {
        // Values beyond the range of a float are the same on both or wrong.
        if !a.is_finite() || !b.is_finite() {
            if a.is_finite() != b.is_finite() || a.is_nan() != b.is_nan() {
                return Some(at(i));
            }
            continue;
        }
        let difference = (f64::from(a) - f64::from(b)).abs();
        error += difference * difference;
        size += f64::from(a) * f64::from(a);
        if difference > worst.0 {
            worst = (difference, i);
        }
    }
    (error > tolerance * size).then(|| at(worst.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_value_of_many_is_found() {
        let right: Vec<f32> = (0..512).map(|i| (i as f32).sin()).collect();
        assert_eq!(differs(&right, &right, 1e-5), None);
        let mut rounded = right.clone();
        rounded.iter_mut().for_each(|value| *value *= 1.0 + 1e-6);
        assert_eq!(differs(&right, &rounded, 1e-5), None);
        let mut wrong = right.clone();
        wrong[7] = wrong[6];
        assert!(differs(&right, &wrong, 1e-5).unwrap().starts_with("[7] is"));
        wrong[7] = f32::NAN;
        assert!(differs(&right, &wrong, 1e-5).unwrap().starts_with("[7] is NaN"));
        assert!(differs(&[0.0; 4], &[0.0, 0.0, 1e-20, 0.0], 1e-5).is_some());
    }
}
