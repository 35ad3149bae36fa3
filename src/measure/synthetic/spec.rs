//! The specification of a synthetic model, and its checks.

use std::{fmt, path::Path, str::FromStr};

use hal::format::Format;

use super::{Error, Shape, metadata::N_SPECIAL};
use gguf::Container;

/// Upper limit of all widths and counts, so that no product of sizes overflows.
const MAX_SIZE: usize = 1 << 20;
const MAX_LAYERS: usize = 10_000;
/// Densities that the power law of the firing rates can reach.
const DENSITIES: std::ops::RangeInclusive<f64> = 0.005..=0.8;

/// RoPE scaling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rope {
    /// No scaling.
    Plain,
    /// Positions divided by `factor`.
    Linear {
        /// Above 0.
        factor: f32,
    },
    /// `YaRN`.
    Yarn {
        /// Above 0.
        factor: f32,
        /// Context before the scaling, tokens.
        n_ctx_orig: u32,
    },
    /// A tensor of factors, as in Llama 3.1, for an original context of 8192 tokens.
    Llama3 {
        /// Above 0; applies to the slowest pairs.
        factor: f32,
    },
}

/// A synthetic model. [`Spec::parse`] sets defaults; the fields may be changed afterwards.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Sizes.
    pub shape: Shape,
    /// Format of all matrices.
    pub format: Format,
    /// ReLU in the feed-forward blocks, otherwise SiLU.
    pub relu: bool,
    /// The container that [`Spec::build`] makes.
    pub container: Container,
    /// Mean fraction of neurons whose gate is positive; `None` for random gate weights, which make
    /// half of the gates positive.
    pub density: Option<f64>,
    /// Seed of the weights.
    pub seed: u64,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Values per head; `None` for width / heads.
    pub d_head: Option<usize>,
    /// Scaling of rotary positions.
    pub rope: Rope,
    /// Whether the embedding is also the output matrix.
    pub tied: bool,
    /// Sliding window; `None` for global attention.
    pub window: Option<u32>,
    /// Number of experts, each with the shape's number of neurons, and experts per token; `None`
    /// for a dense block.
    pub experts: Option<[usize; 2]>,
}

impl Spec {
    /// A model of `shape` with 32000 tokens and seed 1. With ReLU a tenth of the neurons is active;
    /// with SiLU the gate weights are random.
    #[must_use]
    pub fn new(shape: Shape, format: Format, relu: bool) -> Spec {
        Spec {
            shape,
            format,
            relu,
            container: Container::Gguf,
            density: relu.then_some(0.1),
            seed: 1,
            n_vocab: 32_000,
            d_head: None,
            rope: Rope::Plain,
            tied: false,
            window: None,
            experts: None,
        }
    }

    /// Parses `SHAPE:TYPE:relu`, `SHAPE:TYPE:silu` or `SHAPE:TYPE:relu:pwri`, ignoring case.
    /// `SHAPE*8/2` means 8 experts with the shape's neurons, of which a token uses 2; their gate
    /// weights are random.
    ///
    /// # Errors
    /// An unknown shape, format or activation; an invalid size, as in [`Spec::check`].
    pub fn parse(given: &str) -> Result<Spec, Error> {
        let parts: Vec<_> = given.split(':').collect();
        let (shape, format, activation, container) = match parts[..] {
            [shape, format, activation] => (shape, format, activation, Container::Gguf),
            [shape, format, activation, suffix] if suffix.eq_ignore_ascii_case("pwri") => {
                (shape, format, activation, Container::PowerInfer)
            }
            _ => return Err(Error::Syntax { given: given.to_owned() }),
        };
        let (shape, experts) = match shape.split_once('*') {
            None => (shape, None),
            Some((shape, experts)) => (shape, Some(parse_experts(given, experts)?)),
        };
        let shape = shape.parse()?;
        let format = format
            .parse()
            .ok()
            .filter(|format: &Format| can_hold(*format))
            .ok_or_else(|| unknown_format(format))?;
        let relu = match activation {
            _ if activation.eq_ignore_ascii_case("relu") => true,
            _ if activation.eq_ignore_ascii_case("silu") => false,
            _ => return Err(Error::Activation { given: activation.to_owned() }),
        };
        let mut spec = Spec { container, experts, ..Spec::new(shape, format, relu) };
        spec.density = spec.density.filter(|_| experts.is_none());
        spec.check()?;
        Ok(spec)
    }

    /// The container for a file of that name: PowerInfer's if it ends in `.pwri.gguf`, otherwise
    /// the spec's.
    #[must_use]
    pub fn container_for(&self, path: &Path) -> Container {
        let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase());
        if name.is_some_and(|name| name.ends_with(".pwri.gguf")) {
            Container::PowerInfer
        } else {
            self.container
        }
    }

    pub(super) fn d_head(&self) -> usize {
        self.d_head.unwrap_or(self.shape.n_embd / self.shape.n_head.max(1))
    }

    pub(super) fn n_q(&self) -> usize {
        self.shape.n_head * self.d_head()
    }

    pub(super) fn n_kv(&self) -> usize {
        self.shape.n_head_kv * self.d_head()
    }

    /// Number of channels that are the constant 1: whole blocks, so that quantisation does not mix
    /// them with others.
    pub(super) fn n_const(&self) -> usize {
        if self.density.is_some() { self.format.block_values().max(32) } else { 0 }
    }

    /// Checks that the specification is valid.
    ///
    /// # Errors
    /// The first invalid size, and the expected one.
    pub fn check(&self) -> Result<(), Error> {
        if !can_hold(self.format) {
            return Err(unknown_format(self.format.name()));
        }
        let Shape { n_embd, n_layer, n_ff, n_head, n_head_kv } = self.shape;
        for (what, found, most) in [
            ("the embedding size", n_embd, MAX_SIZE),
            ("the number of layers", n_layer, MAX_LAYERS),
            ("the number of neurons", n_ff, MAX_SIZE),
            ("the number of heads", n_head, MAX_SIZE),
            ("the number of KV heads", n_head_kv, MAX_SIZE),
            ("the size of a head", self.d_head.unwrap_or(2), 1 << 12),
        ] {
            within(what, found, 1, most)?;
        }
        within("the size of the vocabulary", self.n_vocab, N_SPECIAL + 1, MAX_SIZE)?;
        if self.d_head.is_none() && n_embd % n_head != 0 {
            let expected = format!("a multiple of the {n_head} heads");
            return Err(size("the embedding size", n_embd, expected));
        }
        if !self.d_head().is_multiple_of(2) {
            return Err(size("the size of a head", self.d_head(), "an even number"));
        }
        if !n_head.is_multiple_of(n_head_kv) {
            let expected = format!("a divisor of the {n_head} heads");
            return Err(size("the number of KV heads", n_head_kv, expected));
        }
        if let Some([n, n_used]) = self.experts {
            within("the number of experts", n, 1, MAX_SIZE / n_ff)?;
            within("the number of experts a token uses", n_used, 1, n)?;
        }
        let block = self.format.block_values();
        for (what, found) in [
            ("the embedding size", n_embd),
            ("the number of neurons", n_ff),
            ("the total size of the query heads", self.n_q()),
        ] {
            within(what, found, 1, MAX_SIZE)?;
            if found % block != 0 {
                let expected = format!("a multiple of {block}, the block of {}", self.format);
                return Err(size(what, found, expected));
            }
        }
        if let Rope::Linear { factor } | Rope::Yarn { factor, .. } | Rope::Llama3 { factor } =
            self.rope
            && !(factor > 0.0 && factor.is_finite())
        {
            return Err(size("the RoPE scaling factor", factor, "a positive number"));
        }
        self.check_density()
    }

    fn check_density(&self) -> Result<(), Error> {
        if let (Some(_), Some(density)) = (self.experts, self.density) {
            return Err(size("the density", density, "none: experts have random gate weights"));
        }
        if let Some(density) = self.density {
            if !DENSITIES.contains(&density) {
                let expected = format!("{} to {}", DENSITIES.start(), DENSITIES.end());
                return Err(size("the density", density, expected));
            }
            within("the embedding size", self.shape.n_embd, 2 * self.n_const(), MAX_SIZE)?;
        }
        if self.container == Container::PowerInfer {
            self.check_predictable()?;
        }
        Ok(())
    }

    /// Returns an error if PowerInfer's container does not support the model.
    pub(super) fn check_predictable(&self) -> Result<(), Error> {
        match (self.relu, self.density) {
            (true, Some(_)) => Ok(()),
            (true, None) => Err(Error::Container { found: "a ReLU model without a density" }),
            (false, _) => Err(Error::Container { found: "a SiLU model" }),
        }
    }
}

/// Parses `8/2`: number of experts, and experts per token.
fn parse_experts(given: &str, experts: &str) -> Result<[usize; 2], Error> {
    let numbers = experts.split_once('/').map(|(n, n_used)| [n.parse().ok(), n_used.parse().ok()]);
    match numbers {
        Some([Some(n), Some(n_used)]) => Ok([n, n_used]),
        _ => Err(Error::Syntax { given: given.to_owned() }),
    }
}

/// Whether synthetic weights can be stored in this format. With fewer than four bits per weight,
/// neurons would not fire at their given rates.
fn can_hold(format: Format) -> bool {
    let has_bits = 8 * format.block_bytes() >= 4 * format.block_values();
    format.is_weight() && format.quantizes() && has_bits
}

fn unknown_format(given: &str) -> Error {
    let known: Vec<_> = Format::ALL.iter().filter(|f| can_hold(**f)).map(|f| f.name()).collect();
    Error::Format { given: given.to_owned(), known: known.join(", ") }
}

fn size(what: &'static str, found: impl fmt::Display, expected: impl fmt::Display) -> Error {
    Error::Size { what, found: found.to_string(), expected: expected.to_string() }
}

fn within(what: &'static str, found: usize, least: usize, most: usize) -> Result<(), Error> {
    if (least..=most).contains(&found) {
        Ok(())
    } else {
        Err(size(what, found, format!("{least} to {most}")))
    }
}

impl fmt::Display for Spec {
    /// The form that [`Spec::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let activation = if self.relu { "relu" } else { "silu" };
        write!(f, "{}", self.shape)?;
        if let Some([n, n_used]) = self.experts {
            write!(f, "*{n}/{n_used}")?;
        }
        write!(f, ":{}:{activation}", self.format)?;
        match self.container {
            Container::Gguf => Ok(()),
            Container::PowerInfer => f.write_str(":pwri"),
        }
    }
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(given: &str) -> Result<Spec, Error> {
        Spec::parse(given)
    }
}
