//! `hal` rejects invalid calls. The oracle is a simulated device; the tests of `sim` run the suite
//! on it.
#![allow(clippy::unwrap_used, reason = "a test may fail this way")]

use hal::format::Format;
use hal::op::{Merge, Post};
use hal::{Batch, BatchShape, MailboxShape, TensorDesc};

/// Mailboxes that were allocated together may share memory, so a second post would overwrite the
/// first.
#[test]
fn mailboxes_that_share_memory_cannot_be_open_at_once() {
    let device = thermocline_conformance::oracle();
    let shape = MailboxShape { max_tokens: 4, n_in: 3, n_weights: 0, n_out: 3, max_rows: 0 };
    let batch = BatchShape { max_tokens: 4, max_seqs: 1, max_blocks: 1 };
    let words = TensorDesc::new(1, batch.n_words(), Format::U32);
    let batch = Batch { words: device.alloc("batch", words).unwrap(), shape: batch };
    let [x, y] = ["x", "y"].map(|label| device.alloc_f32(label, 4, 3).unwrap());
    let apart = [(); 2].map(|()| device.mailbox(shape).unwrap());
    let together = device.mailboxes(shape, 2).unwrap();
    let mut recorder = device.record("two at once");
    let [a, b, c, d] = [&apart[0], &apart[1], &together[0], &together[1]]
        .map(|mailbox| recorder.mailbox(mailbox).unwrap());
    let post = |mailbox| {
        let (x, batch) = (x.clone(), batch.clone());
        Post { x, batch, rows: None, weights: None, mailbox }
    };
    [a, b, c].into_iter().for_each(|mailbox| recorder.push(post(mailbox)).unwrap());
    let refused = recorder.push(post(d)).unwrap_err();
    assert!(refused.to_string().contains("that share its memory are merged"), "{refused}");
    recorder.push(Merge { batch: batch.clone(), y, mailbox: c, accumulate: false }).unwrap();
    recorder.push(post(d)).unwrap();
}
