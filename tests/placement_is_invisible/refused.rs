//! The parts of a model that a device cannot hold are reported with the device's reason, and
//! placed elsewhere.

use thermocline::engine::forecast;

use super::*;

/// The messages about the ops that the device rejects, and the loaded engine.
fn notices_and_engine(sim: Arc<SimBackend>) -> (Vec<String>, Engine) {
    let model = Tiny { format: Format::Q8_0, ..Tiny::default() }.model();
    let sim = Device::new(sim as Arc<dyn Backend>, DeviceId(1), Bytes::MAX);
    let devices = vec![cpu_device(2), sim];
    let mut notices = forecast(&model, &devices, &super::options()).refused;
    assert!(notices[0].is_empty(), "the CPU supports every op");
    (notices.remove(1), load(&model, devices, None))
}

#[test]
fn no_notice_if_the_device_takes_every_layer() {
    within(LIMIT, || {
        let (notices, engine) = notices_and_engine(SimBackend::new(SimOptions::default()));
        assert_eq!(notices, [""; 0]);
        assert!(engine.placement().layers.iter().all(|layer| layer.home == 1));
    });
}

#[test]
fn notices_name_the_refused_op() {
    within(LIMIT, || {
        for (op, what) in [
            (
                "Attention",
                "3 of 3 layers cannot be placed on this device, whole or split with the CPU (Attention: refused by the test",
            ),
            (
                "SparseFfn",
                "3 of 3 layers cannot be placed whole on this device (SparseFfn: refused by the test)",
            ),
            ("GetRows", "the embedding cannot be placed on this device (GetRows: "),
            ("Gather", "the head cannot be placed on this device (Gather: "),
        ] {
            let sim = SimBackend::new(SimOptions::default());
            sim.refuse(op);
            let (notices, engine) = notices_and_engine(sim);
            assert!(notices.iter().any(|notice| notice.starts_with(what)), "{op}: {notices:?}");
            let placement = engine.placement();
            let here = placement.layers.iter().any(|layer| layer.home == 1 && !layer.is_split());
            assert_eq!(here, !notices.iter().any(|notice| notice.contains("whole")), "{op}");
            assert!(op != "GetRows" || placement.embed == 0);
            assert!(op != "Gather" || placement.head == 0);
        }
    });
}

#[test]
fn notices_give_the_size_of_too_large_operands() {
    within(LIMIT, || {
        let options = SimOptions { max_binding: Bytes(6000), ..SimOptions::default() };
        let (notices, engine) = notices_and_engine(SimBackend::new(options));
        let notice =
            notices.iter().find(|notice| notice.contains("whole")).expect("layers do not fit");
        assert!(
            notice.contains("takes") && notice.contains("a binding covers at most 5.86 KiB"),
            "{notice}"
        );
        assert!(engine.placement().layers.iter().all(|layer| layer.home == 0 || layer.is_split()));
    });
}
