// Finds the tokens of one sequence with a whole workgroup. The shader binds `batch`; its parameters include at_batch,
// max_tokens and n_rows.
var<workgroup> first_token: atomic<u32>;
var<workgroup> last_token: atomic<u32>;
var<workgroup> found_tokens: vec2<u32>;

fn batch_seq(t: u32) -> u32 { return batch[p.at_batch + 4u + p.max_tokens + t]; }
fn batch_pos(t: u32) -> u32 { return batch[p.at_batch + 4u + 2u * p.max_tokens + t]; }

// The first and the last token of a sequence; the first is n_rows if it has none. Tokens of other sequences may lie
// between them.
fn tokens_of(seq: u32, local: u32) -> vec2<u32> {
    if (local == 0u) {
        atomicStore(&first_token, p.n_rows);
        atomicStore(&last_token, 0u);
    }
    workgroupBarrier();
    for (var t = local; t < min(batch[p.at_batch], p.n_rows); t += {{FLAT}}u) {
        if (batch_seq(t) == seq) {
            atomicMin(&first_token, t);
            atomicMax(&last_token, t);
        }
    }
    workgroupBarrier();
    if (local == 0u) { found_tokens = vec2(atomicLoad(&first_token), atomicLoad(&last_token)); }
    return workgroupUniformLoad(&found_tokens);
}
