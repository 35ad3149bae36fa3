fn sigmoid_of(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}
