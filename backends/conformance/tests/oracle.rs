//! The oracle passes its own suite.

#[test]
fn the_oracle_conforms() {
    let started = std::time::Instant::now();
    let report = thermocline_conformance::run_all(&thermocline_conformance::oracle());
    println!("{report}, {:.1?}", started.elapsed());
    assert_eq!((report.n_failed(), report.n_skipped()), (0, 0), "\n{report}");
}
