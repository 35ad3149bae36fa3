//! Chooses the tokens of several feeds for the next device step.

use super::{Feed, LogitsRequest};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    /// Token counts that programs exist for, ascending, the first being 1.
    pub(crate) buckets: &'a [usize],
    /// Maximum number of tokens whose logits are computed.
    pub(crate) max_out: usize,
    /// Maximum number of sequences.
    pub(crate) max_seqs: usize,
    /// Whether the number of tokens must match a program exactly.
    pub(crate) unpadded: bool,
}

/// Number of tokens with logits among the next `take` of the `left` tokens of a feed.
pub(crate) fn outputs_of(want: LogitsRequest, take: usize, left: usize) -> usize {
    match want {
        LogitsRequest::None => 0,
        LogitsRequest::Last => usize::from(take > 0 && take == left),
        LogitsRequest::All => take,
    }
}

/// Sets `takes` to the number of tokens of each feed in the next device step. Every feed gets one
/// token if possible, so that decode does not wait for prefill; further tokens come from the feeds
/// in order. The step has the largest token count of [`Limits::buckets`] that these tokens fill, so
/// that a single feed is never padded. If that count is less than one token per sequence, the step
/// takes all tokens that fit and is padded, unless [`Limits::unpadded`] is set.
pub(crate) fn schedule(feeds: &[Feed<'_>], limits: &Limits<'_>, takes: &mut Vec<usize>) {
    takes.clear();
    takes.resize(feeds.len(), 0);
    let most = limits.buckets.last().copied().unwrap_or(1);
    let (mut n_seqs, mut n, mut n_out) = (0, 0, 0);
    for (feed, take) in feeds.iter().zip(takes.iter_mut()) {
        let left = feed.tokens.len();
        let out = outputs_of(feed.want, 1, left);
        if left > 0 && n_seqs < limits.max_seqs && n < most && n_out + out <= limits.max_out {
            *take = 1;
            (n_seqs, n, n_out) = (n_seqs + 1, n + 1, n_out + out);
        }
    }
    for (feed, take) in feeds.iter().zip(takes.iter_mut()).filter(|(_, take)| **take > 0) {
        let left = feed.tokens.len();
        let room = limits.max_out - n_out;
        let mut more = (left - 1).min(most - n);
        match feed.want {
            LogitsRequest::None => {}
            LogitsRequest::Last if more > 0 && 1 + more == left && room == 0 => more -= 1,
            LogitsRequest::Last => {}
            LogitsRequest::All => more = more.min(room),
        }
        n_out += outputs_of(feed.want, 1 + more, left) - outputs_of(feed.want, 1, left);
        *take += more;
        n += more;
    }
    let whole = limits.buckets.iter().rev().copied().find(|&size| size <= n).unwrap_or(1);
    let least = if limits.unpadded { 0 } else { 1 };
    let target = if whole < n_seqs && !limits.unpadded { n } else { whole };
    for keep in [1, least] {
        for take in takes.iter_mut().rev() {
            let less = take.saturating_sub(keep).min(n - target);
            *take -= less;
            n -= less;
        }
    }
}

/// As [`schedule`], for encoders: all tokens of the first feed that has tokens.
pub(crate) fn schedule_text(feeds: &[Feed<'_>], takes: &mut Vec<usize>) {
    takes.clear();
    takes.resize(feeds.len(), 0);
    if let Some(first) = feeds.iter().position(|feed| !feed.tokens.is_empty()) {
        takes[first] = feeds[first].tokens.len();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Sequence;
    use super::super::cache::SequenceCache;
    use super::super::pool::{Pool, PoolSizes};
    use super::*;

    /// The values of `takes` of all device steps for feeds of these lengths.
    fn steps(feeds: &[(usize, LogitsRequest)], limits: Limits<'_>) -> Vec<Vec<usize>> {
        let sizes = PoolSizes { n_blocks: 1, n_seq: 1, n_checkpoint: 0, recurrent: false };
        let pool = Pool::new(sizes);
        let sequence =
            |_: &_| Sequence { tokens: Vec::new(), cached: SequenceCache::new(&Arc::clone(&pool)) };
        let mut sequences: Vec<Sequence> = feeds.iter().map(sequence).collect();
        let tokens = vec![0; 200];
        let mut feeds: Vec<Feed<'_>> = sequences
            .iter_mut()
            .zip(feeds)
            .map(|(sequence, &(n, want))| Feed { sequence, tokens: &tokens[..n], want })
            .collect();
        let mut all = Vec::new();
        while feeds.iter().any(|feed| !feed.tokens.is_empty()) {
            let mut takes = Vec::new();
            schedule(&feeds, &limits, &mut takes);
            let (n, n_out) = feeds.iter().zip(&takes).fold((0, 0), |(n, n_out), (feed, &take)| {
                (n + take, n_out + outputs_of(feed.want, take, feed.tokens.len()))
            });
            assert!(n > 0 && n <= *limits.buckets.last().unwrap() && n_out <= limits.max_out);
            assert!(takes.iter().filter(|take| **take > 0).count() <= limits.max_seqs);
            assert!(!limits.unpadded || limits.buckets.contains(&n));
            feeds
                .iter_mut()
                .zip(&takes)
                .for_each(|(feed, &take)| feed.tokens = &feed.tokens[take..]);
            all.push(takes);
        }
        all
    }

    const BUCKETS: [usize; 6] = [1, 2, 4, 8, 16, 32];
    const LIMITS: Limits<'_> =
        Limits { buckets: &BUCKETS, max_out: 8, max_seqs: 4, unpadded: false };

    #[test]
    fn one_feed_is_cut_into_recorded_token_counts() {
        let expected: [Vec<usize>; 4] = [vec![32], vec![4], vec![2], vec![1]];
        assert_eq!(steps(&[(39, LogitsRequest::Last)], LIMITS), expected);
        assert_eq!(steps(&[(11, LogitsRequest::All)], LIMITS), [[8], [2], [1]]);
        assert_eq!(steps(&[(3, LogitsRequest::None)], LIMITS), [[2], [1]]);
    }

    #[test]
    fn decode_shares_steps_with_prefill() {
        let feeds = [
            (20, LogitsRequest::Last),
            (1, LogitsRequest::Last),
            (0, LogitsRequest::All),
            (1, LogitsRequest::Last),
        ];
        let expected = [[14, 1, 0, 1], [4, 0, 0, 0], [2, 0, 0, 0]];
        assert_eq!(steps(&feeds, LIMITS), expected);
    }

    #[test]
    fn steps_with_one_token_per_sequence_may_be_padded() {
        let one = (1, LogitsRequest::Last);
        assert_eq!(steps(&[one; 3], LIMITS), [[1, 1, 1]]);
        assert_eq!(steps(&[one; 5], LIMITS), [[1, 1, 1, 1, 0], [0, 0, 0, 0, 1]]);
        let unpadded = Limits { unpadded: true, ..LIMITS };
        assert_eq!(steps(&[one; 3], unpadded), [[1, 1, 0], [0, 0, 1]]);
        let wide = Limits { max_seqs: 5, ..LIMITS };
        assert_eq!(steps(&[(3, LogitsRequest::None), one, one, one, one], wide), [[3, 1, 1, 1, 1]]);
    }

    #[test]
    fn outputs_are_limited() {
        let two = Limits { max_out: 2, ..LIMITS };
        assert_eq!(
            steps(
                &[(1, LogitsRequest::Last), (1, LogitsRequest::Last), (1, LogitsRequest::Last)],
                two
            )
            .len(),
            2
        );
        let feeds = [(3, LogitsRequest::All), (3, LogitsRequest::Last)];
        let expected = [[1, 1], [1, 1], [1, 1]];
        assert_eq!(steps(&feeds, Limits { max_out: 1, ..LIMITS }).len(), 4);
        assert_eq!(steps(&[(3, LogitsRequest::All), (3, LogitsRequest::All)], two), expected);
    }
}
