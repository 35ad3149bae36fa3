// Access to the batch. The shader binds `batch`; its parameters include at_batch and those of
// max_tokens, max_seqs and max_blocks that the called functions use.
fn batch_tokens() -> u32 { return batch[p.at_batch]; }
fn batch_outputs() -> u32 { return batch[p.at_batch + 2u]; }
fn batch_seq(t: u32) -> u32 { return batch[p.at_batch + 4u + p.max_tokens + t]; }
fn batch_pos(t: u32) -> u32 { return batch[p.at_batch + 4u + 2u * p.max_tokens + t]; }
fn batch_kv_row(t: u32) -> u32 { return batch[p.at_batch + 4u + 3u * p.max_tokens + t]; }
fn batch_output(i: u32) -> u32 { return batch[p.at_batch + 4u + 4u * p.max_tokens + i]; }
