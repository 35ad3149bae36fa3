const {{self}}_HEAD: u32 = 2u;
const {{self}}_HAS_MIN: bool = true;
const {{self}}_FIVE_BITS: bool = false;
const {{self}}_TOP: f32 = 15.0;
const {{self}}_ZERO: f32 = 0.0;

fn {{self}}_entry(code: u32) -> f32 {
    return f32(code) - {{self}}_ZERO;
}
