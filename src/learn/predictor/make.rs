//! Makes a layer's predictor or thresholds from observed activations.

use hal::HostRows;
use hal::format::Format;

use super::evaluator::Evaluator;
use super::factor::{Factors, Moment};
use super::matrix::DenseMatrix;
use super::observations::{Contribution, Observations};
use super::scale::{self, ScoreDistribution};
use super::train::{self, TrainedFactors};
use super::{Curve, Error, LayerPredictor, LayerThresholds, Result};
use model::Ffn;

/// Ranks are multiples of this, the block size of quantised weights.
pub const RANK_STEP: usize = 32;
const MAX_RANK: usize = 1024;
/// Candidate formats of the two matrices. The second matrix is the larger one, so the first may
/// have more bits; formats with blocks of 256 are for wide models, whose ranks and rows are
/// multiples of 256.
const FORMATS: [Formats; 5] = [
    Formats(Format::Q3_K, Format::Q2_K),
    Formats(Format::Q4_0, Format::Q3_K),
    Formats(Format::Q4_0, Format::Q4_0),
    Formats(Format::Q8_0, Format::Q4_0),
    Formats(Format::Q8_0, Format::Q8_0),
];
/// Maximum number of candidate ranks.
const N_RANKS: usize = 32;
/// Range in which thresholds are searched, as natural logarithms of losses.
const MIN_LOSS: f64 = -60.0;
const MAX_LOSS: f32 = 40.0;
/// Training shortens lists about as much as doubling the target error, so the candidate to train is
/// chosen with the doubled target.
const TARGET_FACTOR: f32 = 2.0;

/// Kinds of predictor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PredictorKind {
    /// Low-rank factors of the gate.
    #[default]
    Factors,
    /// The signs of the gate, one bit per weight. The text only determines the thresholds, so a
    /// short text is enough, without decomposition or training.
    Signs,
}

/// Settings for making predictors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Low-rank factors or signs.
    pub kind: PredictorKind,
    /// The relative error of a block's output at which rank and training are evaluated.
    pub target: f32,
    /// Steps of training; 0 for none. Signs are not trained.
    pub n_steps: usize,
    /// The rank of factors, a multiple of [`RANK_STEP`]; `None` chooses it.
    pub rank: Option<usize>,
    /// Size limit of factors, as a fraction of the block's bytes; `None` for no limit.
    pub max_size: Option<f64>,
}

/// The current step for a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Computes the factors of the highest rank.
    Factors,
    /// Evaluates this rank.
    Rank(usize),
    /// Trains, after this number of steps.
    Training(usize),
    /// Searches thresholds.
    Thresholds,
}

/// The weights of a block that a predictor needs.
#[derive(Clone, Debug)]
pub struct Block {
    /// `[n_ff, n_embd]`: gate, or up without a gate.
    test: DenseMatrix,
    /// `[n_ff]`: bias of the products of `test`; `None` without a bias.
    bias: Option<DenseMatrix>,
    /// `[n_ff, n_embd]`: a row per neuron.
    pub(super) down: DenseMatrix,
    /// Bytes of a row of `test` in the file.
    row_bytes: usize,
    /// Bytes of all matrices of the block in the file.
    n_bytes: u64,
}

impl Block {
    /// Reads the block's weights.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub fn of(ffn: &Ffn) -> Result<Block> {
        let test = ffn.gate.as_ref().unwrap_or(&ffn.up);
        let down = match ffn.n_expert() {
            Some(n) => model::stacked_to_columns(&ffn.down.w, n)
                .map_err(|reason| Error::Read { reason })?,
            None => ffn.down.w.clone(),
        };
        let down = DenseMatrix::dequantize(&down)?;
        let size = |rows: &HostRows| (rows.desc().n_rows * rows.row_bytes()) as u64;
        Ok(Block {
            test: DenseMatrix::dequantize(&test.w)?,
            bias: test.bias.as_ref().map(DenseMatrix::dequantize).transpose()?,
            down: if ffn.down_by_neuron { down } else { down.transposed() },
            row_bytes: test.w.row_bytes(),
            n_bytes: ffn.matrices().map(|(_, rows)| size(rows)).sum(),
        })
    }

    /// The test values for the rows of `x`.
    fn tests(&self, x: &DenseMatrix) -> DenseMatrix {
        let mut tests = x.times(&self.test);
        if let Some(bias) = &self.bias {
            for row in tests.values.chunks_exact_mut(bias.n_cols) {
                row.iter_mut().zip(&bias.values).for_each(|(v, bias)| *v += bias);
            }
        }
        tests
    }
}

/// A layer's observations, split by use.
#[derive(Clone, Copy, Debug)]
pub struct SplitObservations<'a> {
    /// For fitting.
    pub fit: &'a Observations,
    /// Held out, for evaluation.
    pub held_out: &'a Observations,
}

/// Formats of a predictor's two matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Formats(pub(super) Format, pub(super) Format);

impl Formats {
    /// Whether rows of `n_embd` and of `rank` values are whole blocks of the formats.
    fn fit(self, n_embd: usize, rank: usize) -> bool {
        n_embd.is_multiple_of(self.0.block_values()) && rank.is_multiple_of(self.1.block_values())
    }
}

struct Candidate {
    formats: Formats,
    start: TrainedFactors,
    /// Bytes read per token: the predictor and the listed rows of gate.
    cost: f64,
}

/// Scores as computed by the engine, without bias: both matrices and their inputs quantised.
fn scores(factors: &Factors, formats: Formats, x: &DenseMatrix) -> Result<DenseMatrix> {
    let fc1 = DenseMatrix::dequantize(&factors.fc1.quantized(formats.0))?;
    let fc2 = DenseMatrix::dequantize(&factors.fc2.quantized(formats.1))?;
    let hidden = x.activations(formats.0).times(&fc1);
    Ok(hidden.activations(formats.1).times(&fc2))
}

fn with_bias(mut scores: DenseMatrix, bias: &[f32]) -> DenseMatrix {
    for row in scores.values.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
    }
    scores
}

/// Makes the predictor of layer `layer`. `stage` receives the current step; if it returns `false`,
/// the work is cancelled and the result is `None`.
///
/// # Errors
/// [`Error::Singular`] for inputs without variation; [`Error::TooLarge`] if no candidate is within
/// the size limit; [`Error::Read`].
pub fn predictor(
    layer: usize,
    block: &Block,
    texts: SplitObservations<'_>,
    settings: &Settings,
    stage: &mut dyn FnMut(Stage) -> bool,
) -> Result<Option<LayerPredictor>> {
    let maker = PredictorBuilder::new(block, texts, settings);
    match settings.kind {
        PredictorKind::Signs if !stage(Stage::Thresholds) => return Ok(None),
        PredictorKind::Signs => return maker.signs().map(Some),
        PredictorKind::Factors if !stage(Stage::Factors) => return Ok(None),
        PredictorKind::Factors => {}
    }
    let most = settings.rank.unwrap_or(MAX_RANK).min(block.test.n_cols);
    let mut moment = Moment::new(texts.fit.n_embd());
    moment.add(&texts.fit.x);
    let factors = Factors::new(&block.test, &moment, most)
        .map_err(|reason| Error::Singular { layer, reason })?;
    let Some(best) = maker.best(&factors, stage)? else { return Ok(None) };
    let trained = match settings.n_steps {
        0 => None,
        n => {
            let lengths: Vec<f32> =
                (0..block.down.n_rows).map(|n| norm(block.down.row(n))).collect();
            let step = &mut |done| stage(Stage::Training(done));
            let trained = train::train(&best.start, best.formats, texts.fit, &lengths, n, step);
            match trained? {
                Some(trained) => Some(trained),
                None => return Ok(None),
            }
        }
    };
    if !stage(Stage::Thresholds) {
        return Ok(None);
    }
    Ok(Some(maker.finish(&best, trained)?))
}

fn norm(row: &[f32]) -> f32 {
    row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt() as f32
}

/// Makes the thresholds of a layer whose activation function has no exact zeros.
#[must_use]
pub fn thresholds(block: &Block, texts: SplitObservations<'_>) -> LayerThresholds {
    let weights = Evaluator::new(texts.fit, &block.down).weights();
    let curve = Evaluator::new(texts.held_out, &block.down).activation_curve(&weights);
    LayerThresholds { weights, curve }
}

struct PredictorBuilder<'a> {
    block: &'a Block,
    texts: SplitObservations<'a>,
    settings: &'a Settings,
    evaluator: Evaluator<'a>,
    weights: Vec<f64>,
    /// A sample of inputs to estimate the score distributions from, and their test values.
    sample: DenseMatrix,
    tests: DenseMatrix,
}

const MAX_SAMPLE_TOKENS: usize = 4096;

impl<'a> PredictorBuilder<'a> {
    fn new(
        block: &'a Block,
        texts: SplitObservations<'a>,
        settings: &'a Settings,
    ) -> PredictorBuilder<'a> {
        let mut sample = DenseMatrix::new(0, texts.fit.n_embd());
        let every = texts.fit.n_tokens().div_ceil(MAX_SAMPLE_TOKENS).max(1);
        (0..texts.fit.n_tokens()).step_by(every).for_each(|t| sample.push(texts.fit.x.row(t)));
        let tests = block.tests(&sample);
        let evaluator = Evaluator::new(texts.held_out, &block.down);
        let weights = scale::weights(texts.fit, &block.down);
        PredictorBuilder { block, texts, settings, evaluator, weights, sample, tests }
    }

    /// The candidate with the fewest bytes per token among the candidates within the size limit;
    /// `None` if `stage` cancels the work.
    fn best(
        &self,
        factors: &Factors,
        stage: &mut dyn FnMut(Stage) -> bool,
    ) -> Result<Option<Candidate>> {
        let mut best: Option<Candidate> = None;
        let (mut n_worse, mut least) = (0, f64::MAX);
        let most = factors.fc1.n_rows / RANK_STEP * RANK_STEP;
        let step = (most / N_RANKS).next_multiple_of(RANK_STEP).max(RANK_STEP);
        let ranks = match self.settings.rank {
            Some(rank) => rank.min(most)..=rank.min(most),
            None => step..=most,
        };
        for rank in ranks.step_by(step) {
            if !stage(Stage::Rank(rank)) {
                return Ok(None);
            }
            n_worse += 1;
            let fit = |formats: &Formats| formats.fit(self.block.test.n_cols, rank);
            for formats in FORMATS.into_iter().filter(fit) {
                let share = bytes(factors, rank, formats) as f64 / self.block.n_bytes.max(1) as f64;
                least = least.min(share);
                if self.settings.max_size.is_some_and(|most| share > most) {
                    continue;
                }
                let candidate = self.candidate(factors, rank, formats)?;
                if best.as_ref().is_none_or(|best| candidate.cost < best.cost) {
                    (best, n_worse) = (Some(candidate), 0);
                }
            }
            // Three ranks without a gain: bytes grow linearly with the rank, while the benefit
            // shrinks.
            if n_worse > 2 {
                break;
            }
        }
        match (best, self.settings.max_size) {
            (None, Some(most)) => Err(Error::TooLarge { most, least }),
            (best, _) => Ok(best),
        }
    }

    fn candidate(&self, factors: &Factors, rank: usize, formats: Formats) -> Result<Candidate> {
        let cut = factors.truncated(rank);
        let spread = ScoreDistribution::new(&self.tests, &scores(&cut, formats, &self.sample)?);
        let factors = Factors { fc2: spread.scale(&cut.fc2), fc1: cut.fc1 };
        let held = scores(&factors, formats, &self.texts.held_out.x)?;
        let target = match self.settings.n_steps {
            0 => self.settings.target,
            _ => self.settings.target * TARGET_FACTOR,
        };
        let bias = self.bias(&spread, &held, target);
        let listed = self.evaluator.by_scores(&with_bias(held, &bias), 0.0).listed;
        let rows = self.block.test.n_rows as f64;
        let cost =
            bytes(&factors, rank, formats) as f64 + listed * rows * self.block.row_bytes as f64;
        Ok(Candidate { formats, start: TrainedFactors { factors, bias }, cost })
    }

    /// The biases for a threshold that is equal for all neurons and gives an output error of
    /// `target`.
    fn bias(&self, spread: &ScoreDistribution, held: &DenseMatrix, target: f32) -> Vec<f32> {
        // The search works on logarithms of losses.
        let loss = |t: usize, part: &Contribution| {
            let n = part.neuron as usize;
            spread.loss(n, held.row(t)[n], self.weights[n]).ln().max(MIN_LOSS) as f32
        };
        let threshold = self.evaluator.search(loss, MAX_LOSS, &[target])[0];
        spread.bias(&self.weights, f64::from(threshold).exp())
    }

    /// The predictor from the gate's signs.
    fn signs(&self) -> Result<LayerPredictor> {
        let scores = |x: &DenseMatrix, w: &DenseMatrix| {
            let w = DenseMatrix::dequantize(&w.quantized(Format::Q1_0))?;
            Ok::<_, Error>(x.activations(Format::Q1_0).times(&w))
        };
        let spread = ScoreDistribution::new(&self.tests, &scores(&self.sample, &self.block.test)?);
        let fc2 = spread.scale(&self.block.test);
        let held = scores(&self.texts.held_out.x, &fc2)?;
        let bias = self.bias(&spread, &held, self.settings.target);
        let curve = self.evaluator.curve(&with_bias(held, &bias));
        let fc2 = fc2.quantized(Format::Q1_0);
        Ok(LayerPredictor { fc1: None, fc2, bias, curve, trained: false })
    }

    /// The trained predictor if training shortened the lists on held-out text, otherwise the
    /// untrained one.
    fn finish(&self, best: &Candidate, trained: Option<TrainedFactors>) -> Result<LayerPredictor> {
        let mut kept: Option<(&TrainedFactors, Curve, f64, bool)> = None;
        for (made, is_trained) in [(Some(&best.start), false), (trained.as_ref(), true)] {
            let Some(made) = made else { continue };
            let held = scores(&made.factors, best.formats, &self.texts.held_out.x)?;
            let held = with_bias(held, &made.bias);
            let threshold = self.evaluator.thresholds(&held, &[self.settings.target])[0];
            let listed = self.evaluator.by_scores(&held, threshold).listed;
            if kept.as_ref().is_none_or(|kept| listed < kept.2) {
                kept = Some((made, self.evaluator.curve(&held), listed, is_trained));
            }
        }
        let (made, curve, _, trained) = kept.expect("the untrained factors were evaluated");
        Ok(LayerPredictor {
            fc1: Some(made.factors.fc1.quantized(best.formats.0)),
            fc2: made.factors.fc2.quantized(best.formats.1),
            bias: made.bias.clone(),
            curve,
            trained,
        })
    }
}

/// Bytes of the factors of this rank and of the biases.
fn bytes(factors: &Factors, rank: usize, formats: Formats) -> usize {
    let size = |n_rows: usize, n_cols: usize, format: Format| {
        n_rows * format.row_bytes(n_cols).unwrap_or(usize::MAX / 8 / n_rows.max(1))
    };
    let (n_ff, n_embd) = (factors.fc2.n_rows, factors.fc1.n_cols);
    size(rank, n_embd, formats.0) + size(n_ff, rank, formats.1) + 4 * n_ff
}
