//! The numbers of SiTU, the activation of Kimi K3.

use hal::op::Activation;

use super::Error;
use super::hyper::Keys;

/// Range of the limits: in it, quotients and products of ordinary values do not overflow.
const RANGE: std::ops::RangeInclusive<f32> = 1e-3..=1e6;

/// `activation`, with the file's limits if it is SiTU.
pub(super) fn read(keys: &Keys<'_>, activation: Activation) -> Result<Activation, Error> {
    const BETA: &str = "activation.situ_beta";
    const CAP: &str = "activation.situ_linear_beta";
    if !matches!(activation, Activation::Situ { .. }) {
        return Ok(activation);
    }
    let expected = "a number from 0.001 to 1000000";
    let beta = match keys.f32(BETA)? {
        None => return Err(keys.missing(BETA, "the limit of the gate")),
        Some(beta) if RANGE.contains(&beta) => beta,
        Some(beta) => return Err(keys.wrong_key(BETA, expected, beta)),
    };
    match keys.f32(CAP)? {
        None => Err(keys.missing(CAP, "the limit of up, or 0 for none")),
        Some(cap) if RANGE.contains(&cap) => Ok(Activation::Situ { beta, cap }),
        // As in llama.cpp, up has no limit then.
        Some(cap) if cap <= 0.0 => Ok(Activation::Situ { beta, cap: 0.0 }),
        Some(cap) => Err(keys.wrong_key(CAP, format!("0, or {expected}"), cap)),
    }
}
