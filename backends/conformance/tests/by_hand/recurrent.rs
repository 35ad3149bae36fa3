//! The recurrent layers.

use hal::op::{DecayCurve, GatedDelta, HeadMapping, ShortConv, SsmScan, Wkv6, Wkv7};

use crate::OracleDevice;

#[test]
fn recurrent_layers_carry_their_state() {
    let mut b = OracleDevice::new();
    let batch = b.batch(&[4, 5]);
    let y = b.f32s(2, 1, &[0.0; 2]);
    let state = b.f32s(1, 2, &[1.0, 2.0]);
    let op = ShortConv {
        x: b.f32s(2, 1, &[3.0, 4.0]),
        weight: b.f32s(1, 3, &[100.0, 10.0, 1.0]),
        bias: None,
        batch: batch.clone(),
        state: state.clone(),
        y: y.clone(),
        silu: false,
    };
    b.run(op);
    b.expect(&y, &[123.0, 234.0]);
    b.expect(&state, &[3.0, 4.0]);

    // All operands are scalars; softplus(ln(e - 1)) = 1 and sigmoid(0) = 1/2. Token 0 halves S = 8
    // to 4 and adds 0.5 * 2 * (6 - 2 * 4) = -2, so S = 2. Token 1 halves S to 1 and adds
    // 0.5 * 2 * (6 - 2 * 1) = 4, so S = 5.
    let state = b.f32s(1, 1, &[8.0]);
    let half = 0.5f32.ln();
    let op = GatedDelta {
        q: b.f32s(2, 1, &[1.0, 3.0]),
        k: b.f32s(2, 1, &[2.0, 2.0]),
        v: b.f32s(2, 1, &[6.0, 6.0]),
        decay: b.f32s(2, 1, &[1f32.exp_m1().ln() - 1.0; 2]),
        beta: b.f32s(2, 1, &[0.0, 0.0]),
        dt_bias: b.f32s(1, 1, &[1.0]),
        a: b.f32s(1, 1, &[half]),
        batch: batch.clone(),
        state: state.clone(),
        y: y.clone(),
        n_head_k: 1,
        n_head_v: 1,
        heads: HeadMapping::Modulo,
        curve: DecayCurve::Softplus,
        scale: 1.0,
    };
    b.run(op);
    b.expect(&y, &[2.0, 15.0]);
    b.expect(&state, &[5.0]);

    // dt = softplus(ln(e - 1)) = 1 and exp(a) = 1/2, so each token halves S and adds x * b. The
    // output is y = S * c + d * x.
    let state = b.f32s(1, 1, &[4.0]);
    let op = SsmScan {
        x: b.f32s(2, 1, &[3.0, 1.0]),
        dt: b.f32s(2, 1, &[1f32.exp_m1().ln() - 1.0; 2]),
        dt_bias: b.f32s(1, 1, &[1.0]),
        a: b.f32s(1, 1, &[half]),
        b: b.f32s(2, 1, &[2.0, 1.0]),
        c: b.f32s(2, 1, &[1.0, 10.0]),
        d: b.f32s(1, 1, &[100.0]),
        batch,
        state: state.clone(),
        y: y.clone(),
        n_group: 1,
    };
    b.run(op);
    let got = b.read(&y);
    assert!((got[0] - 308.0).abs() < 1e-3 && (got[1] - 150.0).abs() < 1e-3, "{got:?}");
    b.expect(&state, &[5.0]);

    // A token at position 0 resets the state.
    let first = b.batch(&[0]);
    let state = b.f32s(1, 2, &[f32::NAN; 2]);
    let op = ShortConv {
        x: b.f32s(1, 1, &[3.0]),
        weight: b.f32s(1, 3, &[100.0, 10.0, 1.0]),
        bias: None,
        batch: first,
        state: state.clone(),
        y: y.rows(0..1),
        silu: false,
    };
    b.run(op);
    b.expect(&y.rows(0..1), &[3.0]);
    b.expect(&state, &[0.0, 3.0]);
}

#[test]
fn scans_with_many_rates_and_rwkv7_follow_their_formulas() {
    let mut b = OracleDevice::new();
    let batch = b.batch(&[2]);
    // dt = 1; the decay factors are 1/2 and 1/4. S becomes [2 + 3 * 2, 1 + 3 * 1].
    let (y, state) = (b.f32s(1, 1, &[0.0]), b.f32s(1, 2, &[4.0, 4.0]));
    let op = SsmScan {
        x: b.f32s(1, 1, &[3.0]),
        dt: b.f32s(1, 1, &[1f32.exp_m1().ln()]),
        dt_bias: b.f32s(1, 1, &[0.0]),
        a: b.f32s(1, 2, &[0.5f32.ln(), 0.25f32.ln()]),
        b: b.f32s(1, 2, &[2.0, 1.0]),
        c: b.f32s(1, 2, &[1.0, 10.0]),
        d: b.f32s(1, 1, &[100.0]),
        batch: batch.clone(),
        state: state.clone(),
        y: y.clone(),
        n_group: 1,
    };
    b.run(op);
    let got = [b.read(&y), b.read(&state)].concat();
    assert!(got.iter().zip([348.0, 8.0, 4.0]).all(|(a, b)| (a - b).abs() < 1e-3), "{got:?}");

    // A decay of 1, a rate of 1/2 and half of the first layer's value. The key of -2 has the
    // direction -1, and k' = -2 * (1 + 4 * (1/2 - 1)) = 2. S becomes 3 + 2 * 5 - 1/2 * 3.
    let (y, bonus, state) = (b.f32s(1, 1, &[0.0]), b.f32s(1, 1, &[0.0]), b.f32s(1, 1, &[3.0]));
    let op = Wkv7 {
        r: b.f32s(1, 1, &[10.0]),
        w: b.f32s(1, 1, &[-1000.0]),
        k: b.f32s(1, 1, &[-2.0]),
        v: b.f32s(1, 1, &[4.0]),
        a: b.f32s(1, 1, &[0.0]),
        first: Some(b.f32s(1, 1, &[6.0])),
        mix: Some(b.f32s(1, 1, &[0.0])),
        vectors: b.f32s(4, 1, &[7.0, 4.0, 0.5, 0.25]),
        batch,
        state: state.clone(),
        y: y.clone(),
        bonus: bonus.clone(),
        n_head: 1,
    };
    b.run(op);
    b.expect(&state, &[11.5]);
    b.expect(&y, &[115.0]);
    b.expect(&bonus, &[2.0 * 10.0 * 0.5 * 5.0 + 0.25]);
}

/// A row of the state decays by `exp(-exp(w))`: here 1/2 and 1/4.
#[test]
fn rwkv6_follows_its_formulas() {
    let mut b = OracleDevice::new();
    let batch = b.batch(&[2]);
    let ln_rate = |decay: f32| (-decay.ln()).ln();
    let op = |b: &mut OracleDevice, first| Wkv6 {
        r: b.f32s(1, 2, &[1.0, 10.0]),
        w: b.f32s(1, 2, &[ln_rate(0.5), ln_rate(0.25)]),
        k: b.f32s(1, 2, &[2.0, 4.0]),
        v: b.f32s(1, 2, &[3.0, 5.0]),
        first,
        batch: batch.clone(),
        // Rows are keys, columns are values.
        state: b.f32s(1, 4, &[8.0, 16.0, 20.0, 40.0]),
        y: b.f32s(1, 2, &[0.0; 2]),
        n_head: 1,
    };
    // The old state and the pair, weighted by 3 and 1/2: rows [8 + 18, 16 + 30], [20 + 6, 40 + 10].
    let first = b.f32s(1, 2, &[3.0, 0.5]);
    let with_first = op(&mut b, Some(first));
    b.run(with_first.clone());
    b.expect_near(&with_first.y, &[26.0 + 260.0, 46.0 + 500.0]);
    b.expect_near(&with_first.state, &[4.0 + 6.0, 8.0 + 10.0, 5.0 + 12.0, 10.0 + 20.0]);

    // Keys of [2 * 1/2, 4 * 3/4]; the output reads the new state.
    let gated = op(&mut b, None);
    b.run(gated.clone());
    b.expect_near(&gated.state, &[4.0 + 3.0, 8.0 + 5.0, 5.0 + 9.0, 10.0 + 15.0]);
    b.expect_near(&gated.y, &[7.0 + 140.0, 13.0 + 250.0]);
}
