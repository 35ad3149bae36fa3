//! Cases of Post and Merge: the host answers the posts of split layers.

use std::time::Instant;

use hal::op::{Add, Merge, Post};
use hal::{Batch, BatchShape, KV_BLOCK, MailboxShape, Program, Result, Run, Tensor};

use crate::Case;
use crate::rig::{Data, Rig};

const N_IN: usize = 33;
const N_OUT: usize = 40;
const CAPACITY: usize = 19;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n_tokens, max_tokens) in [(1, 1), (3, 8), (40, 40)] {
        let sizes = Sizes::new(n_tokens, max_tokens);
        for list in [false, true] {
            let name = format!("HandOff/t{n_tokens}of{max_tokens}/list-{list}");
            cases.push(Case::new(name, move |rig: &mut Rig| run_one(rig, sizes, list)));
        }
        let weighted = Sizes { n_layers: 2, n_weights: 5, ..sizes };
        let name = format!("HandOff/t{n_tokens}of{max_tokens}/weights");
        cases.push(Case::new(name, move |rig: &mut Rig| run_one(rig, weighted, true)));
    }
    // One mailbox serves programs for different numbers of tokens. Each program's row list is sized
    // for the program's own tokens.
    for (n_tokens, list, mailbox) in [(3, 8, 100), (40, 64, 64), (40, 64, 130)] {
        let sizes = Sizes { n_layers: 2, list, mailbox, ..Sizes::new(n_tokens, n_tokens) };
        let name = format!("HandOff/t{n_tokens}/list-of{list}/mailbox-of{mailbox}");
        cases.push(Case::new(name, move |rig: &mut Rig| run_one(rig, sizes, true)));
    }
    cases.push(Case::new("HandOff/empty-list", run_empty));
    cases.push(Case::new("HandOff/layers", run_layers));
    for together in [false, true] {
        let name = |what: &str| if together { format!("{what}/together") } else { what.to_owned() };
        cases.push(Case::new(name("HandOff/given-up"), move |rig: &mut Rig| {
            run_dropped_step(rig, together)
        }));
        cases.push(Case::new(name("HandOff/timed"), move |rig: &mut Rig| run_timed(rig, together)));
    }
    cases.push(Case::new("HandOff/layers/together", run_shared_mailboxes));
    cases
}

#[derive(Clone, Copy)]
struct Sizes {
    n_tokens: usize,
    /// Maximum number of tokens of the program.
    max_tokens: usize,
    /// Maximum number of tokens of the row list.
    list: usize,
    /// Maximum number of tokens of the mailbox.
    mailbox: usize,
    n_layers: usize,
    n_weights: usize,
    /// Whether the mailboxes of all layers are allocated together.
    together: bool,
}

impl Sizes {
    /// One layer without weights, whose list has capacity for more tokens than the mailbox.
    fn new(n_tokens: usize, max_tokens: usize) -> Sizes {
        let (list, mailbox) = (max_tokens + 32, max_tokens);
        Sizes { n_tokens, max_tokens, list, mailbox, n_layers: 1, n_weights: 0, together: false }
    }
}

/// A batch with alternating tokens of two sequences, if there are at least two tokens.
fn two_sequences(rig: &mut Rig, n_tokens: usize, max_tokens: usize) -> Result<Batch<Tensor>> {
    let (n_blocks, second) = (max_tokens.div_ceil(KV_BLOCK) + 1, n_tokens / 2);
    let shape = BatchShape { max_tokens, max_seqs: 2, max_blocks: n_blocks };
    let facts = rig.facts(&[(n_tokens - second, n_tokens - second), (second, second)], n_blocks);
    rig.batch(shape, &facts, n_blocks, 1 << 20)
}

/// A program of `n_layers` layers. Each layer posts `x`, adds to `y`, and merges the answer into
/// `y`, which the next layer uses.
struct Layers {
    program: Program,
    y: Tensor,
    n_tokens: usize,
    n_layers: usize,
}

fn build(rig: &mut Rig, sizes: Sizes, ids: Option<&[u32]>) -> Result<Layers> {
    let Sizes { n_tokens, max_tokens, list, mailbox, n_layers, n_weights, together } = sizes;
    if !rig.device.info().hand_off {
        return Err(rig.unsupported("Post", "the device does not support hand-offs"));
    }
    let batch = two_sequences(rig, n_tokens, max_tokens)?;
    let y_values = rig.rng.floats(max_tokens * N_OUT);
    let y = rig.output_from(max_tokens, N_OUT, &y_values)?;
    let a = rig.input(max_tokens, N_OUT)?;
    let mut recorder = rig.device.record("hand-off");
    let shape = MailboxShape {
        max_tokens: mailbox,
        n_in: N_IN,
        n_weights,
        n_out: N_OUT,
        max_rows: if ids.is_some() { CAPACITY } else { 0 },
    };
    let mailboxes = if together {
        rig.device.mailboxes(shape, n_layers)?
    } else {
        (0..n_layers).map(|_| rig.device.mailbox(shape)).collect::<Result<_>>()?
    };
    for (layer, mailbox) in mailboxes.iter().enumerate() {
        let mailbox = recorder.mailbox(mailbox)?;
        let x = rig.input(max_tokens, N_IN)?;
        // The answer of the third layer overwrites `y`.
        let accumulate = layer != 2;
        let rows = match ids {
            Some(ids) => {
                let wants = |i: usize, t: usize| !(i + t).is_multiple_of(3);
                Some(rig.row_set(CAPACITY, list, ids, n_tokens, &wants)?)
            }
            None => None,
        };
        let weights = match n_weights {
            0 => None,
            n => Some(rig.input(max_tokens, n)?),
        };
        recorder.push(Post { x, batch: batch.clone(), rows, weights, mailbox })?;
        recorder.begin_part();
        recorder.push(Add { a: a.clone(), x: y.clone() })?;
        recorder.begin_part();
        recorder.push(merge(&batch, &y, mailbox, accumulate))?;
    }
    Ok(Layers { program: recorder.finish()?, y, n_tokens, n_layers })
}

fn merge(batch: &Batch<Tensor>, y: &Tensor, mailbox: usize, accumulate: bool) -> Merge<Tensor> {
    Merge { batch: batch.clone(), y: y.clone(), mailbox, accumulate }
}

/// Records the data of the next post and answers with values computed from `x`. Returns false if
/// the program has ended.
fn serve(rig: &mut Rig, run: &mut Run) -> Result<bool> {
    let Some(posted) = run.next_post()? else { return Ok(false) };
    let (n_tokens, mailbox) = (posted.n_tokens, posted.mailbox);
    let mut facts = vec![n_tokens as u32, mailbox as u32];
    if let Some(rows) = posted.rows {
        facts.extend(&rows.ids);
        let pairs = (0..rows.ids.len()).flat_map(|i| (0..n_tokens).map(move |t| (i, t)));
        facts.extend(pairs.map(|(i, t)| u32::from(rows.token_needs(i, t))));
    }
    facts.extend(posted.x.iter().chain(posted.weights).map(|v| v.to_bits()));
    let value = |t: usize, i: usize| posted.x[t * N_IN + i % N_IN] * (1.0 + mailbox as f32);
    let answer: Vec<f32> = (0..n_tokens * N_OUT).map(|at| value(at / N_OUT, at % N_OUT)).collect();
    rig.add_output("post", Data::Words(facts));
    run.answer(&answer)?;
    Ok(true)
}

fn serve_all(rig: &mut Rig, layers: &Layers) -> Result<()> {
    let mut run = rig.queue.replay(&layers.program)?;
    while serve(rig, &mut run)? {}
    run.wait()?;
    rig.watch("y", &layers.y.rows(0..layers.n_tokens))
}

fn run_one(rig: &mut Rig, sizes: Sizes, list: bool) -> Result<()> {
    let ids = rig.rng.choose(CAPACITY - 2, 1000);
    let layers = build(rig, sizes, list.then_some(&ids[..]))?;
    serve_all(rig, &layers)?;
    serve_all(rig, &layers)
}

/// A list without rows is still posted and answered.
fn run_empty(rig: &mut Rig) -> Result<()> {
    let layers = build(rig, Sizes::new(2, 4), Some(&[]))?;
    serve_all(rig, &layers)
}

fn run_layers(rig: &mut Rig) -> Result<()> {
    let ids = rig.rng.choose(5, 50);
    let layers = build(rig, Sizes { n_layers: 4, ..Sizes::new(5, 8) }, Some(&ids))?;
    serve_all(rig, &layers)?;
    serve_all(rig, &layers)
}

/// Several layers post to mailboxes that may share memory.
fn run_shared_mailboxes(rig: &mut Rig) -> Result<()> {
    let ids = rig.rng.choose(5, 50);
    let sizes = Sizes { n_layers: 4, n_weights: 3, together: true, ..Sizes::new(5, 8) };
    let layers = build(rig, sizes, Some(&ids))?;
    serve_all(rig, &layers)?;
    serve_all(rig, &layers)
}

/// A step is dropped before, during and after a hand-off. No thread keeps waiting, and the next
/// step works.
fn run_dropped_step(rig: &mut Rig, together: bool) -> Result<()> {
    let layers = build(rig, Sizes { n_layers: 3, together, ..Sizes::new(3, 4) }, None)?;
    let fresh = rig.rng.floats(4 * N_OUT);
    for answers in 0..3 {
        let mut run = rig.queue.replay(&layers.program)?;
        for _ in 0..answers {
            serve(rig, &mut run)?;
        }
        if answers == 1 {
            // Receives a post but never answers it.
            let posted = run.next_post()?.map(|posted| posted.n_tokens as u32);
            rig.add_output("left open", Data::Words(posted.into_iter().collect()));
        }
        drop(run);
        rig.queue.finish()?;
        rig.queue.write(&layers.y, &crate::rig::f32_bytes(&fresh))?;
        serve_all(rig, &layers)?;
    }
    Ok(())
}

/// A timed run has the same results as an untimed run, and the times of its parts are in order.
fn run_timed(rig: &mut Rig, together: bool) -> Result<()> {
    let layers = build(rig, Sizes { n_layers: 3, together, ..Sizes::new(2, 4) }, None)?;
    let began = Instant::now();
    let mut run = rig.queue.replay_timed(&layers.program)?;
    while serve(rig, &mut run)? {}
    let times = run.times()?;
    rig.check_times(&times, began, 2 * layers.n_layers + 1);
    rig.watch("y", &layers.y.rows(0..layers.n_tokens))
}
