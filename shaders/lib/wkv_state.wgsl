// The state of RWKV: a workgroup holds some columns of one head's state of a sequence, from the first
// token to the last. GROUPS invocations, COLUMNS apart, share a column, with ROWS rows each.
const GROUPS: u32 = {{SHARED}}u;
const COLUMNS: u32 = {{FLAT}}u / GROUPS;

// This invocation's rows of a column.
var<private> held: array<f32, {{ROWS}}>;

// The place of an invocation: head, sequence, its column in the workgroup and in the state, its group
// among those that share the column, and where the column begins.
struct Place {
    h: u32,
    seq: u32,
    column: u32,
    j: u32,
    group: u32,
    own: u32,
}

fn place_of(block: u32, local: u32) -> Place {
    let n_blocks = (p.d + COLUMNS - 1u) / COLUMNS;
    let h = block / n_blocks % p.n_head;
    let seq = block / n_blocks / p.n_head;
    let j = block % n_blocks * COLUMNS + local % COLUMNS;
    let own = p.at_state + (seq * p.n_head + h) * p.d * p.d + j;
    return Place(h, seq, local % COLUMNS, j, local / COLUMNS, own);
}

// A sequence that begins in this step has a state of zeros.
fn load_state(place: Place, fresh: bool) {
    for (var row = 0u; row < {{ROWS}}u; row++) {
        let i = place.group + GROUPS * row;
        held[row] = 0.0;
        if (place.j < p.d && i < p.d && !fresh) { held[row] = state[place.own + i * p.d]; }
    }
}

fn store_state(place: Place) {
    for (var row = 0u; row < {{ROWS}}u; row++) {
        let i = place.group + GROUPS * row;
        if (place.j < p.d && i < p.d) { state[place.own + i * p.d] = held[row]; }
    }
}
