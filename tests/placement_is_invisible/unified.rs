//! With unified memory, splitting a layer gains nothing, because both devices share one bandwidth.

use hal::DeviceKind;

use super::*;

#[test]
fn unified_memory_splits_no_layer() {
    within(LIMIT, || {
        let model = Tiny { format: Format::Q8_0, ..Tiny::default() }.model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        let make_device = |kind, budget| {
            let sim = SimBackend::new(SimOptions { kind, ..SimOptions::default() });
            Device::new(sim as Arc<dyn Backend>, DeviceId(1), budget)
        };
        let roomy = make_device(DeviceKind::Integrated, Bytes::MAX);
        let engine = load(&model, vec![cpu_device(2), roomy.clone()], None);
        let placement = engine.placement();
        assert!(placement.layers.iter().all(|layer| layer.home == 1 && !layer.is_split()));
        let all = roomy.ledger().peak().0;
        drop(engine);
        let (mut some, mut split_elsewhere) = (0, 0);
        for step in 0..=16 {
            let budget = Bytes(all * step / 16);
            let device = make_device(DeviceKind::Integrated, budget);
            let mut engine = load(&model, vec![cpu_device(2), device], None);
            assert_eq!(engine.placement().n_split(), 0, "budget {budget}");
            let layers = &engine.placement().layers;
            some += usize::from(layers.iter().any(|layer| layer.home != layers[0].home));
            assert!(difference(&expected, &logits(&mut engine, &[7])) <= bound(Format::Q8_0));
            let card =
                load(&model, vec![cpu_device(2), make_device(DeviceKind::Discrete, budget)], None);
            split_elsewhere += card.placement().n_split();
        }
        assert!(some > 0, "with some budget, both devices had whole layers");
        assert!(split_elsewhere > 0, "a card with the same memory has split layers");
    });
}
