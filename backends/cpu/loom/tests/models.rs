//! The models: small jobs, of which loom explores the interleavings.

use thermocline_cpu_loom::explore;

fn main() {
    let models: [(&str, usize, &'static [usize], &'static [usize], usize); 5] = [
        ("one phase", 2, &[2], &[2], 3),
        ("two phases", 2, &[2, 2], &[2], 2),
        ("phases of one chunk between others", 2, &[1, 2, 0, 1], &[2], 2),
        ("threads become inactive and active", 2, &[2], &[2, 1, 2], 2),
        ("three threads", 3, &[3], &[3], 0),
    ];
    for (name, n_threads, sizes, active, preemptions) in models {
        let n = explore(n_threads, sizes, active, preemptions);
        println!("{name}: {n} executions, at most {preemptions} preemptions");
    }
}
