//! The parts of a model that a device cannot hold are reported with the device's reason, and
//! placed elsewhere.

use thermocline::engine::forecast;

use super::*;

/// The messages about a device that rejects an op, and the engine.
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
                "3 of 3 layers cannot be on this device, whole or split with the CPU (Attention: refused by the test",
            ),
            (
                "SparseFfn",
                "3 of 3 layers cannot be whole on this device (SparseFfn: refused by the test)",
            ),
            ("GetRows", "the embedding cannot be on this device (GetRows: "),
            ("Gather", "the head cannot be on this device (Gather: "),
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
        assert!(said.contains("takes") && said.contains("an op binds at most 5.86 KiB"), "{said}");
        assert!(engine.placement().layers.iter().all(|layer| layer.home == 0 || layer.is_split()));
    });
}
