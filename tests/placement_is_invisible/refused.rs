//! What a device cannot hold of a model is told, in the device's words, and is nowhere else for another reason.

use thermocline::engine::forecast;

use super::*;

/// A device that refuses something, and what is told of it.
fn told(sim: Arc<SimBackend>) -> (Vec<String>, Engine) {
    let model = Tiny { format: Format::Q8_0, ..Tiny::default() }.model();
    let sim = Device::new(sim as Arc<dyn Backend>, DeviceId(1), Bytes::MAX);
    let devices = vec![cpu_device(2), sim];
    let mut told = forecast(&model, &devices, &super::options()).refused;
    assert!(told[0].is_empty(), "the CPU can all");
    (told.remove(1), load(&model, devices, None))
}

#[test]
fn nothing_is_told_where_all_can_be_there() {
    within(LIMIT, || {
        let (told, engine) = told(SimBackend::new(SimOptions::default()));
        assert_eq!(told, [""; 0]);
        assert!(engine.placement().layers.iter().all(|layer| layer.home == 1));
    });
}

#[test]
fn the_op_that_is_refused_is_named() {
    within(LIMIT, || {
        for (op, what) in [
            (
                "Attention",
                "3 of 3 layers cannot be there, whole or split with the CPU (Attention: it",
            ),
            (
                "SparseFfn",
                "3 of 3 layers cannot be there whole (SparseFfn: it was told to refuse it)",
            ),
            ("GetRows", "the embedding cannot be there (GetRows: "),
            ("Gather", "the head cannot be there (Gather: "),
        ] {
            let sim = SimBackend::new(SimOptions::default());
            sim.refuse(op);
            let (told, engine) = told(sim);
            assert!(told.iter().any(|said| said.starts_with(what)), "{op}: {told:?}");
            let placement = engine.placement();
            let here = placement.layers.iter().any(|layer| layer.home == 1 && !layer.is_split());
            assert_eq!(here, !told.iter().any(|said| said.contains("whole")), "{op}");
            assert!(op != "GetRows" || placement.embed == 0);
            assert!(op != "Gather" || placement.head == 0);
        }
    });
}

#[test]
fn what_is_too_large_is_told_with_its_size() {
    within(LIMIT, || {
        let options = SimOptions { max_binding: Bytes(6000), ..SimOptions::default() };
        let (told, engine) = told(SimBackend::new(options));
        let said = told.iter().find(|said| said.contains("whole")).expect("layers do not fit");
        assert!(said.contains("takes") && said.contains("an op binds 5.86 KiB"), "{said}");
        assert!(engine.placement().layers.iter().all(|layer| layer.home == 0 || layer.is_split()));
    });
}
