//! What model is meant, and whether there can be such a one.

use std::{fmt, path::Path, str::FromStr};

use hal::format::Format;

use super::{Error, Shape, metadata::N_SPECIAL};
use crate::gguf::Container;

/// No width, count or vocabulary is larger: it keeps every product of sizes far from overflow.
const MOST: usize = 1 << 20;
const MOST_LAYERS: usize = 10_000;
/// Beyond these the power law of the firing rates has no room.
const DENSITIES: std::ops::RangeInclusive<f64> = 0.005..=0.8;

/// How rotary positions are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rope {
    /// Not at all.
    Plain,
    /// Positions divided by `factor`.
    Linear {
        /// Positive.
        factor: f32,
    },
    /// `YaRN`.
    Yarn {
        /// Positive.
        factor: f32,
        /// Context before the scaling, tokens.
        n_ctx_orig: u32,
    },
    /// A tensor of factors as Llama 3.1 has it, for an original context of 8192 tokens.
    Llama3 {
        /// Positive; of the slowest pairs.
        factor: f32,
    },
}

/// A synthetic model. [`Spec::parse`] fills in what is not said; the fields may be changed afterwards.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Sizes.
    pub shape: Shape,
    /// Format of all matrices.
    pub format: Format,
    /// ReLU in the feed-forward blocks, else SiLU.
    pub relu: bool,
    /// Which container [`Spec::build`] makes.
    pub container: Container,
    /// Share of neurons whose gate is positive, on average; `None` for random weights with nothing planted, where
    /// it is a half.
    pub density: Option<f64>,
    /// The same seed gives the same weights.
    pub seed: u64,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Values per head; `None` for width / heads.
    pub d_head: Option<usize>,
    /// Scaling of rotary positions.
    pub rope: Rope,
    /// The embedding is the output matrix, too.
    pub tied: bool,
    /// Positions a token sees; `None` for all.
    pub window: Option<u32>,
    /// Experts of as many neurons as the shape has, and how many a token uses; `None` for a block without.
    pub experts: Option<[usize; 2]>,
}

impl Spec {
    /// A model of `shape`: 32000 tokens, seed 1, a tenth of the neurons firing if ReLU, else nothing planted.
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

    /// Reads `SHAPE:TYPE:relu`, `SHAPE:TYPE:silu` or `SHAPE:TYPE:relu:pwri`, in any case. `SHAPE*8/2` stands for 8
    /// experts of the shape's neurons, of which a token uses 2; nothing is planted in them.
    ///
    /// # Errors
    /// What is not known, with what is; see [`Spec::check`] for sizes.
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

    /// The container for a file of that name: PowerInfer's if it ends in `.pwri.gguf`, else the spec's.
    #[must_use]
    pub fn container_for(&self, path: &Path) -> Container {
        let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase());
        match name.is_some_and(|name| name.ends_with(".pwri.gguf")) {
            true => Container::PowerInfer,
            false => self.container,
        }
    }

    /// Values per head.
    pub(super) fn d_head(&self) -> usize {
        self.d_head.unwrap_or(self.shape.n_embd / self.shape.n_head.max(1))
    }

    /// Width of the queries.
    pub(super) fn n_q(&self) -> usize {
        self.shape.n_head * self.d_head()
    }

    /// Width of the keys.
    pub(super) fn n_kv(&self) -> usize {
        self.shape.n_head_kv * self.d_head()
    }

    /// Channels that are the constant 1: whole blocks, so that no quantisation mixes them with others.
    pub(super) fn n_const(&self) -> usize {
        if self.density.is_some() { self.format.block_values().max(32) } else { 0 }
    }

    /// Whether there can be such a model.
    ///
    /// # Errors
    /// The first size that cannot be, and what it could be.
    pub fn check(&self) -> Result<(), Error> {
        if !can_hold(self.format) {
            return Err(unknown_format(self.format.name()));
        }
        let Shape { n_embd, n_layer, n_ff, n_head, n_head_kv } = self.shape;
        for (what, found, most) in [
            ("the width", n_embd, MOST),
            ("the number of layers", n_layer, MOST_LAYERS),
            ("the number of neurons", n_ff, MOST),
            ("the number of heads", n_head, MOST),
            ("the number of key heads", n_head_kv, MOST),
            ("the size of a head", self.d_head.unwrap_or(2), 1 << 12),
        ] {
            within(what, found, 1, most)?;
        }
        within("the size of the vocabulary", self.n_vocab, N_SPECIAL + 1, MOST)?;
        if self.d_head.is_none() && n_embd % n_head != 0 {
            return Err(size("the width", n_embd, format!("a multiple of the {n_head} heads")));
        }
        if !self.d_head().is_multiple_of(2) {
            return Err(size("the size of a head", self.d_head(), "an even number"));
        }
        if !n_head.is_multiple_of(n_head_kv) {
            let expected = format!("a divisor of the {n_head} heads");
            return Err(size("the number of key heads", n_head_kv, expected));
        }
        if let Some([n, n_used]) = self.experts {
            within("the number of experts", n, 1, MOST / n_ff)?;
            within("the number of experts a token uses", n_used, 1, n)?;
        }
        let block = self.format.block_values();
        for (what, found) in [
            ("the width", n_embd),
            ("the number of neurons", n_ff),
            ("the width of the queries", self.n_q()),
        ] {
            within(what, found, 1, MOST)?;
            if found % block != 0 {
                let expected = format!("a multiple of {block}, the block of {}", self.format);
                return Err(size(what, found, expected));
            }
        }
        if let Rope::Linear { factor } | Rope::Yarn { factor, .. } | Rope::Llama3 { factor } =
            self.rope
            && !(factor > 0.0 && factor.is_finite())
        {
            return Err(size("the factor of the positions", factor, "a positive number"));
        }
        self.check_density()
    }

    fn check_density(&self) -> Result<(), Error> {
        if let (Some(_), Some(density)) = (self.experts, self.density) {
            return Err(size("the density", density, "left out: nothing is planted in experts"));
        }
        if let Some(density) = self.density {
            if !DENSITIES.contains(&density) {
                let expected = format!("{} to {}", DENSITIES.start(), DENSITIES.end());
                return Err(size("the density", density, expected));
            }
            within("the width", self.shape.n_embd, 2 * self.n_const(), MOST)?;
        }
        if self.container == Container::PowerInfer {
            self.check_predictable()?;
        }
        Ok(())
    }

    /// Whether PowerInfer's container can hold the model.
    pub(super) fn check_predictable(&self) -> Result<(), Error> {
        match (self.relu, self.density) {
            (true, Some(_)) => Ok(()),
            (true, None) => Err(Error::Container { found: "one without" }),
            (false, _) => Err(Error::Container { found: "a SiLU model" }),
        }
    }
}

/// `8/2`.
fn parse_experts(given: &str, experts: &str) -> Result<[usize; 2], Error> {
    let numbers = experts.split_once('/').map(|(n, n_used)| [n.parse().ok(), n_used.parse().ok()]);
    match numbers {
        Some([Some(n), Some(n_used)]) => Ok([n, n_used]),
        _ => Err(Error::Syntax { given: given.to_owned() }),
    }
}

/// Whether weights that are made here can be stored in this format. In fewer than four bits neurons would not fire as
/// they are planted.
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
    match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(size(what, found, format!("{least} to {most}"))),
    }
}

impl fmt::Display for Spec {
    /// As [`Spec::parse`] reads it.
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
