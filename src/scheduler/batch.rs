//! A scheduler step: one token for each generation in decode, then a chunk of one prompt.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use engine::{Feed, LogitsRequest};

use crate::choice::{Choice, Outcome};
use crate::request::{EndReason, Error, Event};
use crate::worker::{Running, Worker};

/// Maximum number of tokens of a device step in which the logits of a sequence have the same bits
/// as if the sequence ran alone ([`engine::Engine::step`]).
const MAX_EXACT_BATCH: usize = 16;

impl Worker<'_> {
    /// Computes one token for each generation in decode, then a chunk of one prompt.
    pub(crate) fn step(&mut self) {
        self.n_steps += 1;
        self.drop_lost();
        self.plan();
        self.make_room();
        let decodes = |running: &Running<'_>| running.end == running.choice.tokens.len();
        let planned = self.running.iter().enumerate().filter(|(_, running)| running.n_take() > 0);
        let (decoding, prefilling): (Vec<_>, Vec<_>) = planned.partition(|(_, r)| decodes(r));
        let prefilling: Vec<usize> = prefilling.into_iter().map(|(index, _)| index).collect();
        let decoding: Vec<(usize, usize)> =
            decoding.into_iter().map(|(index, running)| (index, running.n_take())).collect();
        if !decoding.is_empty() {
            // These steps may also have prompt tokens: short prompts and the ends of long ones.
            // Split the time between prefill and decode by number of tokens.
            let n_tokens: usize = decoding.iter().map(|(_, n)| n).sum();
            let prompt = decoding.iter().map(|(index, _)| self.running[*index].n_take_of_prompt());
            let prompt = prompt.sum::<usize>() as f64 / n_tokens as f64;
            // Steps that also compute tokens of a prompt are not watched.
            self.watch.step = decoding.iter().all(|(_, n)| *n == 1) && self.watches();
            let since = Instant::now();
            self.decode(&decoding);
            let time = since.elapsed();
            if self.watch.step {
                self.publish_fired();
            }
            let prompt_time = time.mul_f64(prompt.min(1.0));
            self.counters.n_steps += 1;
            self.counters.n_busy_slots += decoding.len() as u64;
            self.counters.prompt_time += prompt_time;
            self.counters.generated_time += time.saturating_sub(prompt_time);
        }
        for index in prefilling {
            let since = Instant::now();
            self.compute(&[index]);
            self.counters.prompt_time += since.elapsed();
        }
        self.settle();
    }

    /// Truncates running sequences whose cache was lost with a device, so that their tokens are
    /// computed again, and drops idle ones.
    fn drop_lost(&mut self) {
        for running in &mut self.running {
            let n = self.engine.n_cached(&running.sequence);
            if n < running.n_fed() {
                self.engine.truncate(&mut running.sequence, n);
            }
        }
        let engine = &self.engine;
        self.idle.drop_if(|sequence| engine.n_cached(sequence) == 0);
    }

    /// Plans how many tokens each running generation computes in this step: one for each generation
    /// in decode, and a chunk for the prompt that has waited longest.
    fn plan(&mut self) {
        for running in &mut self.running {
            running.start = running.n_fed();
            running.end = running.start + usize::from(running.n_rest() == 1);
        }
        let n_decoding = self.running.iter().filter(|running| running.n_take() > 0).count();
        let prefills = self.running.iter_mut().filter(|running| running.n_take() == 0);
        let next = prefills.min_by_key(|running| (running.latest_piece, running.choice.order()));
        let Some(next) = next else { return };
        next.latest_piece = self.n_steps;
        let (n_rest, n_prefill) = (next.n_rest(), next.choice.n_prefill);
        // With recurrent layers, prefill stops before the last token to make a checkpoint there.
        let together = n_rest + n_decoding <= MAX_EXACT_BATCH && !self.engine.is_recurrent();
        next.end += if together {
            n_rest
        } else if next.start < n_prefill {
            (n_prefill - next.start).min(self.piece)
        } else {
            (n_rest - 1).min(MAX_EXACT_BATCH)
        };
    }

    /// Computes the planned tokens of generations in decode, in device steps of up to
    /// [`MAX_EXACT_BATCH`] tokens. `decoding` has pairs of generation index and token count.
    fn decode(&mut self, decoding: &[(usize, usize)]) {
        let mut group: Vec<usize> = Vec::with_capacity(MAX_EXACT_BATCH);
        let mut n_tokens = 0;
        for &(index, n) in decoding {
            if n_tokens + n > MAX_EXACT_BATCH {
                self.compute(&group);
                group.clear();
                n_tokens = 0;
            }
            group.push(index);
            n_tokens += n;
        }
        self.compute(&group);
    }

    /// Computes the planned tokens of the generations with these indices. After an error, retries
    /// each generation alone, so that an error in one does not fail the others.
    fn compute(&mut self, group: &[usize]) {
        let Err(error) = self.feed(group) else { return };
        let error = Arc::new(error);
        for &index in group {
            let again = if group.len() == 1 {
                Err(Arc::clone(&error))
            } else {
                self.feed(&[index]).map_err(Arc::new)
            };
            if let Err(error) = again {
                let outcome = Outcome::Failed(Error::Engine(error));
                self.running[index].choice.writer.outcome = Some(outcome);
            }
        }
    }

    /// Feeds the planned tokens that are not in the sequences yet.
    fn feed(&mut self, group: &[usize]) -> Result<(), engine::Error> {
        let mut feeds = Vec::with_capacity(group.len());
        let mut writers = Vec::with_capacity(group.len());
        for (index, running) in self.running.iter_mut().enumerate() {
            let (n_fed, end) = (running.n_fed(), running.end);
            if !group.contains(&index) || n_fed >= end {
                continue;
            }
            let Running { sequence, choice, .. } = running;
            let Choice { tokens, writer, .. } = choice;
            let tokens: &[u32] = tokens;
            let want = match (writer.wants_prompt_logprobs(), end == tokens.len()) {
                (true, _) => LogitsRequest::All,
                (false, true) => LogitsRequest::Last,
                (false, false) => LogitsRequest::None,
            };
            feeds.push(Feed { sequence, tokens: &tokens[n_fed..end], want });
            writers.push((tokens, writer));
        }
        let each = &mut |feed: usize, position: usize, logits: &[f32]| {
            let (tokens, writer) = &mut writers[feed];
            match tokens.get(position + 1) {
                Some(&next) => writer.take_prompt_logits(logits, next),
                None => writer.take_logits(logits),
            }
        };
        let interrupt = AtomicBool::new(false);
        if self.watch.step {
            self.engine.step_watched(&mut feeds, &interrupt, each)
        } else {
            self.engine.step(&mut feeds, &interrupt, each)
        }
    }

    /// Processes the results of a step: counts tokens, queues the other choices of a request, and
    /// ends generations.
    fn settle(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            if self.running[index].n_fed() > self.running[index].start {
                self.progress(index);
            }
            let choice = &mut self.running[index].choice;
            self.counters.generated_tokens += choice.take_uncounted();
            match self.running[index].choice.writer.outcome.take() {
                None => index += 1,
                Some(Outcome::Failed(error)) => self.fail(index, error),
                Some(Outcome::Ended(end)) => {
                    let running = self.running.remove(index);
                    self.finish(running, end);
                }
                Some(Outcome::Sampled(token)) => {
                    self.running[index].choice.tokens.push(token);
                    if self.running[index].choice.tokens.len() <= self.engine.max_tokens() {
                        index += 1;
                    } else {
                        index += usize::from(self.shift(index));
                    }
                }
            }
        }
    }

    /// Shifts the context of a generation that fills it, or ends the generation. Returns whether
    /// the generation continues.
    fn shift(&mut self, index: usize) -> bool {
        let Running { sequence, choice, .. } = &mut self.running[index];
        let Some(keep) = choice.shift() else {
            let running = self.running.remove(index);
            self.finish(running, EndReason::ContextFull.into());
            return false;
        };
        let n = self.engine.truncate(sequence, keep);
        self.engine.truncate(sequence, n);
        true
    }

    /// Counts and reports the tokens that a generation computed, makes checkpoints, and queues the
    /// other choices of its request once the prompt is computed.
    fn progress(&mut self, index: usize) {
        let n_fed = self.running[index].n_fed();
        let Running { choice, start, .. } = &mut self.running[index];
        let (n_prompt, cached, n_prefill) = (choice.n_prompt, choice.n_cached, choice.n_prefill);
        let crossed = *start / self.options.checkpoint_every.max(1);
        let crosses = n_fed / self.options.checkpoint_every.max(1) > crossed;
        let prefills = *start < n_prefill;
        let again = choice.n_computed.min(n_fed) - choice.n_computed.min(*start);
        self.counters.recomputed_tokens += again as u64;
        self.counters.n_tokens_max = self.counters.n_tokens_max.max(n_fed as u64);
        if n_fed > choice.n_computed {
            let new = n_fed.min(n_prompt) - choice.n_computed.min(n_prompt);
            self.counters.prompt_tokens += new as u64;
            choice.n_computed = n_fed;
            if new > 0 {
                let done = n_fed.min(n_prompt);
                choice.send(Event::Prefill { done, total: n_prompt, cached });
            }
        }
        if n_fed >= n_prefill && !choice.siblings.is_empty() {
            let siblings = choice.take_siblings();
            let order = choice.order();
            let at = self.waiting.partition_point(|waiting| waiting.order() < order);
            self.waiting.splice(at..at, siblings);
        }
        let free = self.engine.n_free_checkpoints() > 0;
        if prefills && (n_fed == n_prefill || crosses && free) && choice.reuses_cache {
            let empty = self.engine.new_sequence();
            let mut sequence = std::mem::replace(&mut self.running[index].sequence, empty);
            self.checkpoint(&mut sequence);
            self.running[index].sequence = sequence;
        }
    }
}
