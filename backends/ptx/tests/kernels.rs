//! Small kernels, written by hand: what they compute, and the faults that are reported.

#![allow(unsafe_code, reason = "kernels access memory by address")]

use fakes::{Executor as _, Geometry, LaunchFault, Range};
use thermocline_ptx::{FaultKind, Interpreter};

/// A kernel `k` with one buffer (`%rd1`), the thread in `%r1` and its word's address in `%rd2`.
fn unit(body: &str) -> String {
    format!(
        "// unit test\n.version 8.0\n.target sm_80\n.address_size 64\n\
         .global .align 4 .u32 TABLE[3] = {{5, 6, 7}};\n\
         .visible .entry k(\n\t.param .u64 k_param_0\n)\n.maxntid 128, 1, 1\n{{\n\
         .reg .pred %p<9>;\n.reg .f32 %f<9>;\n.reg .b32 %r<33>;\n.reg .b64 %rd<9>;\n\
         .shared .align 16 .b8 words[512];\n\
         ld.param.u64 %rd1, [k_param_0];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 4;\n\
         add.s64 %rd2, %rd1, %rd3;\nmov.u64 %rd4, words;\nadd.s64 %rd5, %rd4, %rd3;\n{body}\nret;\n}}\n"
    )
}

/// The buffer after a launch of one block, or the fault.
fn run(body: &str, threads: u32, buffer: &mut [u32]) -> Result<(), FaultKind> {
    let interpreter = Interpreter::default();
    let module = interpreter.load(0, &unit(body)).expect("a valid unit");
    let range = Range { at: buffer.as_mut_ptr() as u64, len: 4 * buffer.len() as u64 };
    let geometry = Geometry { grid: [1; 3], block: [threads, 1, 1], shared: 0, seed: 0 };
    // SAFETY: the range is the buffer, which nothing else uses.
    let done = unsafe { interpreter.launch(module, "k", &geometry, &[range.at], &[range]) };
    let faults = interpreter.take_faults(0);
    match done {
        Ok(()) => Ok(()),
        Err(LaunchFault::Address(text) | LaunchFault::Kernel(text)) => {
            assert!(text.contains("test (sm_80)"), "{text}");
            Err(faults[0].kind.clone())
        }
    }
}

fn computes(body: &str, expected: impl Fn(u32) -> u32) {
    let mut buffer = [0; 128];
    run(&format!("{body}\nst.global.u32 [%rd2], %r3;"), 128, &mut buffer).expect("no fault");
    for (thread, found) in (0..).zip(buffer) {
        assert_eq!(found, expected(thread), "thread {thread}");
    }
}

fn fault(body: &str) -> FaultKind {
    run(body, 128, &mut [0; 128]).expect_err("a fault")
}

#[test]
fn lanes_that_part_meet_again() {
    let body = "and.b32 %r2, %r1, 3;\nmov.u32 %r3, 0;\n\
                $L_1:\nsetp.ge.u32 %p1, %r3, %r2;\n@%p1 bra $L_2;\nadd.s32 %r3, %r3, 1;\nbra.uni $L_1;\n\
                $L_2:\nshfl.sync.bfly.b32 %r4|%p2, %r3, 1, 31, -1;\nshl.b32 %r4, %r4, 8;\nor.b32 %r3, %r3, %r4;";
    computes(body, |thread| thread & 3 | ((thread ^ 1) & 3) << 8);
}

#[test]
fn the_lanes_of_a_mask_meet_in_two_branches() {
    let body = "and.b32 %r2, %r1, 1;\nsetp.eq.s32 %p1, %r2, 0;\n@%p1 bra $L_1;\n\
                vote.sync.ballot.b32 %r3, %p1, 0xaaaaaaaa;\nbra.uni $L_2;\n\
                $L_1:\nvote.sync.ballot.b32 %r3, %p1, 0x55555555;\n$L_2:";
    computes(body, |thread| if thread & 1 == 0 { 0x5555_5555 } else { 0 });
}

#[test]
fn threads_share_memory_behind_a_barrier() {
    let body = "st.shared.u32 [%rd5], %r1;\nbar.sync 0;\nxor.b32 %r2, %r1, 127;\nmul.wide.u32 %rd3, %r2, 4;\n\
                add.s64 %rd6, %rd4, %rd3;\nld.shared.u32 %r3, [%rd6];";
    computes(body, |thread| 127 - thread);
    let fault = fault(&body.replace("bar.sync 0;", ""));
    assert!(matches!(fault, FaultKind::Race(_) | FaultKind::Shared(_)), "{fault:?}");
}

#[test]
fn launches_are_counted_on_request() {
    // Two warps: a vector of 8 bytes and a word from the parameter's memory, and a word of a table.
    let body = "ld.global.v2.u32 {%r2, %r3}, [%rd1];\nld.global.u32 %r4, [%rd2];\nmov.u64 %rd6, TABLE;\n\
                ld.global.u32 %r5, [%rd6];\nbar.sync 0;\nmembar.sys;\nsetp.gt.u32 %p1, %r1, 31;\n\
                @%p1 bra $L_1;\nadd.s32 %r2, %r2, %r4;\n$L_1:";
    let interpreter = Interpreter::default();
    let module = interpreter.load(3, &unit(body)).expect("a valid unit");
    let mut buffer = [1_u64; 32];
    let range = Range { at: buffer.as_mut_ptr() as u64, len: 256 };
    let geometry = Geometry { grid: [1; 3], block: [64, 1, 1], shared: 0, seed: 0 };
    let run = || {
        // SAFETY: the range is the buffer, which nothing else uses.
        unsafe { interpreter.launch(module, "k", &geometry, &[range.at], &[range]) }
            .expect("no fault");
    };
    run();
    assert!(interpreter.take_launches(3).is_empty(), "nothing asked for them");
    interpreter.count(3);
    run();
    let launches = interpreter.take_launches(3);
    let [launch] = &launches[..] else { panic!("{launches:?}") };
    assert_eq!((launch.kernel.as_str(), launch.threads, launch.in_flight), ("k", 64, 16));
    let counts = &launch.counts;
    assert_eq!((counts.warps, counts.barriers, counts.fences), (2, 2, 2));
    // Without the word of the table.
    assert_eq!(counts.loaded_from(&[0]), [0, 0, 4 * 64, 8 * 64, 0]);
    // Six to find the address, eight of the body, `ret`; one warp adds.
    assert_eq!(counts.instructions, 2 * (6 + 8 + 1) + 1);
    run();
    assert!(interpreter.take_launches(3).is_empty(), "counting has ended");
}

#[test]
fn guards_tables_and_atomics_work() {
    let body = "setp.gt.u32 %p1, %r1, 2;\nmov.u32 %r3, 1;\n@%p1 bra $L_1;\nmov.u64 %rd6, TABLE;\n\
                add.s64 %rd6, %rd6, %rd3;\nld.global.u32 %r3, [%rd6];\n$L_1:\n@!%p1 add.s32 %r3, %r3, 100;\n\
                atom.global.add.u32 %r4, [%rd2], %r3;\nadd.s32 %r3, %r3, %r4;";
    computes(body, |thread| if thread <= 2 { 105 + thread } else { 1 });
}

#[test]
fn a_product_of_bytes_is_that_of_the_matrices() {
    // Every byte depends on its register and its lane.
    let mut body = String::from("and.b32 %r2, %r1, 31;\nmul.lo.s32 %r4, %r2, 16843009;\n");
    for register in 5..11 {
        body += &format!("add.s32 %r{register}, %r4, {};\n", 0x0403_0201 + register * 0x0303_0303);
    }
    for register in 11..15 {
        body += &format!("mov.u32 %r{register}, {register};\n");
    }
    body += "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r11, %r12, %r13, %r14}, {%r5, %r6, %r7, %r8}, \
             {%r9, %r10}, {%r11, %r12, %r13, %r14};\nxor.b32 %r3, %r11, %r12;\nshl.b32 %r13, %r13, 8;\n\
             xor.b32 %r3, %r3, %r13;\nshl.b32 %r14, %r14, 16;\nxor.b32 %r3, %r3, %r14;";
    // The maps as the PTX ISA has them.
    let word = |register: u32, lane: u32| lane * 0x0101_0101 + 0x0403_0201 + register * 0x0303_0303;
    let byte = |word: u32, i: u32| i32::from((word >> (8 * i)) as u8 as i8);
    let a =
        |row: u32, k: u32| byte(word(5 + row / 8 + 2 * (k / 16), row % 8 * 4 + k % 16 / 4), k % 4);
    let b = |k: u32, column: u32| byte(word(9 + k / 16, column * 4 + k % 16 / 4), k % 4);
    computes(&body, |thread| {
        let (group, place) = (thread % 32 / 4, thread % 4);
        let sum = |r: u32| {
            let (row, column) = (group + 8 * (r / 2), 2 * place + r % 2);
            (0..32).fold(11 + r as i32, |sum, k| sum + a(row, k) * b(k, column)) as u32
        };
        sum(0) ^ sum(1) ^ sum(2) << 8 ^ sum(3) << 16
    });
}

#[test]
fn faults_are_reported() {
    let kind = |body: &str| std::mem::discriminant(&fault(body));
    let is = |kind: fn(String) -> FaultKind| std::mem::discriminant(&kind(String::new()));
    assert_eq!(kind("ld.global.u32 %r3, [%rd2+4];"), is(FaultKind::Address));
    assert_eq!(kind("ld.global.u32 %r3, [%rd2+1];"), is(FaultKind::Address));
    assert_eq!(kind("st.global.v4.u32 [%rd2], {%r1, %r1, %r1, %r1};"), is(FaultKind::Address));
    assert_eq!(kind("st.shared.u32 [%rd5+4], %r1;"), is(FaultKind::Shared));
    assert_eq!(kind("ld.shared.u32 %r3, [%rd5];"), is(FaultKind::Shared));
    assert_eq!(kind("st.shared.u32 [%rd4], %r1;"), is(FaultKind::Race));
    assert_eq!(kind("add.s32 %r3, %r4, 1;"), is(FaultKind::Uninitialised));
    assert_eq!(kind("div.u32 %r3, %r1, %r1;"), is(FaultKind::Operand));
    let half = "setp.lt.u32 %p1, %r1, 16;\n";
    let twice = format!("{half}@%p1 bra $L_1;\nbar.sync 0;\n$L_1:\nbar.sync 0;");
    assert_eq!(kind(&twice), is(FaultKind::Barrier));
    let shuffle = "shfl.sync.bfly.b32 %r3|%p2, %r1, 1, 31,";
    assert_eq!(kind(&format!("{half}@%p1 {shuffle} -1;")), is(FaultKind::Mask));
    assert_eq!(kind(&format!("{half}@%p1 bra $L_1;\n{shuffle} -1;\n$L_1:")), is(FaultKind::Mask));
    assert_eq!(kind(&format!("{shuffle} 65535;")), is(FaultKind::Mask));
    let flag =
        "setp.ne.s32 %p1, %r1, 0;\nst.global.u32 [%rd2], %r1;\nbar.sync 0;\n@%p1 bra $L_1;\n";
    let store = "st.relaxed.sys.u32 [%rd1], %r1;\n$L_1:";
    assert_eq!(kind(&format!("{flag}{store}")), is(FaultKind::Order));
    run(&format!("{flag}membar.sys;\n{store}"), 128, &mut [0; 128]).expect("ordered");
    let many = run("", 256, &mut [0; 256]).expect_err("too many threads");
    assert!(matches!(many, FaultKind::Geometry(_)));
}

#[test]
fn what_is_not_understood_does_not_load() {
    let interpreter = Interpreter::default();
    for (body, word) in [
        ("add.s33 %r3, %r1, 1;", "add.s33"),
        ("add.s32 %r3, %rd1, 1;", "wrong size"),
        ("add.s32 %r99, %r1, 1;", "%r99"),
        ("bra $L_9;", "$L_9"),
        (".local .align 4 .b8 stack[8];", ".local"),
        ("@%p1 bar.warp.sync -1;", "bar.warp.sync"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r1}, {%f1};", "mma"),
    ] {
        let why = interpreter.load(0, &unit(body)).expect_err("not understood");
        assert!(why.contains(word) && why.starts_with("test:"), "{why}");
    }
}
