const {{self}}_PER_WORD: u32 = 1u;
fn {{self}}_values(word: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(word), 0.0); }
