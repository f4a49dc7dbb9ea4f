//! What steers and paces packets besides the program, on veth pairs: busy polling, interrupts held back,
//! promiscuous mode, and what an interface has no steering for. Needs root; says so and skips where it is
//! not.

mod support;

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use support::{
    LIMIT, adds_up, attribute, collect, comes_home, eventually, frames, near, near_interface,
    receive, rings, send, set_attribute, settle, to_far, to_near,
};
use xskit::{
    AttachMode, ErrorKind, Interface, QueueId, Rule, Rules, Steering, Step,
    interface::{self, Deferral, Promiscuous, Spread},
    program::FlowRules,
    socket::BusyPoll,
};
use xskit_lab::{Checker, Lab, LabConfig, Link, Need, Offload, die_with_parent};

/// A lab for tests that need no BPF.
fn namespaces() -> Option<Lab> {
    Lab::for_test_with(&LabConfig { need: Need::Namespaces, ..LabConfig::default() })
}

/// Empty rounds before the interrupt, and nanoseconds until the next round.
fn deferred(link: &Link) -> [String; 2] {
    ["napi_defer_hard_irqs", "gro_flush_timeout"].map(|name| attribute(link, name))
}

#[test]
fn busy_polling_moves_packets_and_calls_the_kernel_every_time() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        for mode in [AttachMode::Native, AttachMode::Generic] {
            let config = rings(1024).busy_poll(BusyPoll::default());
            let mut port = near().attach(mode).socket(config).open().unwrap();
            let umem = port.umem().clone();
            let mut socket = port.take_queue(0).unwrap();
            assert!(socket.mode().busy_poll);

            let series = to_near(&lab, 64);
            raw.send_all(&frames(&series, 500)).unwrap();
            let mut checker = Checker::new(series);
            receive(&mut socket, &mut checker, 500, 64);
            assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());

            let series = to_far(&lab, 64);
            let mut checker = Checker::new(series.clone());
            send(&mut socket, &series, 0..500, 64);
            collect(&mut raw, &mut checker, 500);
            assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());
            settle(&mut socket);

            // Calls for nothing are made all the same: in copy mode no flag asks for the first.
            let before = socket.statistics().unwrap();
            let mut batch = umem.batch(64);
            for _ in 0..10 {
                assert_eq!(socket.recv(&mut batch).unwrap(), 0);
                assert_eq!(socket.send(&mut batch).unwrap(), 0);
            }
            let after = socket.statistics().unwrap();
            assert_eq!(after.wakeups_rx - before.wakeups_rx, 10);
            assert_eq!(after.wakeups_tx - before.wakeups_tx, 10);
            adds_up(&umem);
            drop((port, socket, batch));
            comes_home(&umem, &[(&near_interface(), 0)]);
        }
    });
}

#[test]
fn sockets_that_share_a_queue_busy_poll_each_for_themselves() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let mut port = near().socket(rings(1024)).open().unwrap();
        let mut socket = port.take_queue(0).unwrap();
        let config = rings(1024).send_only().busy_poll(BusyPoll::default());
        let mut sharer = socket.share_queue(&config).unwrap();
        assert_eq!((socket.mode().busy_poll, sharer.mode().busy_poll), (false, true));
        let mut batch = port.umem().batch(64);
        assert_eq!(sharer.send(&mut batch).unwrap(), 0);
        assert_eq!(socket.send(&mut batch).unwrap(), 0);
        assert_eq!(sharer.statistics().unwrap().wakeups_tx, 1);
        assert_eq!(socket.statistics().unwrap().wakeups_tx, 0);
    });
}

#[test]
fn deferral_goes_on_and_comes_back() {
    let Some(lab) = namespaces() else { return };
    set_attribute(&lab.near, "gro_flush_timeout", "7000");
    lab.enter(|| {
        let near = near_interface();
        let guard = Deferral::default().apply(&near).unwrap();
        assert_eq!(deferred(&lab.near), ["2", "200000"]);
        assert_eq!(deferred(&lab.far), ["0", "0"]);
        assert!(!guard.per_napi(), "nothing is attached, so that veth has no NAPI instance");
        assert_eq!(guard.interface(), &near);
        assert_eq!(guard.to_string(), "interrupts of near0 deferred, per device");
        let record = guard.record().expect("root can write it down").to_owned();
        assert!(record.exists());
        drop(guard);
        assert_eq!(deferred(&lab.near), ["0", "7000"]);
        assert!(!record.exists());

        let deferral = Deferral::default().hard_irqs(9).flush_timeout(Duration::from_micros(50));
        let guard = deferral.apply(&near).unwrap();
        assert_eq!(deferred(&lab.near), ["9", "50000"]);
        guard.restore().unwrap();
        assert_eq!(deferred(&lab.near), ["0", "7000"]);

        // What an administrator changes meanwhile stays.
        let guard = deferral.apply(&near).unwrap();
        set_attribute(&lab.near, "napi_defer_hard_irqs", "4");
        drop(guard);
        assert_eq!(deferred(&lab.near), ["4", "7000"]);
    });
}

#[test]
fn deferral_comes_back_from_another_namespace_and_under_another_name() {
    let Some(lab) = namespaces() else { return };
    let guard = lab.enter(|| Deferral::default().apply(&near_interface()).unwrap());
    lab.near.down().unwrap();
    let renamed = lab.near.clone().rename("other").unwrap();
    assert_eq!(deferred(&renamed), ["2", "200000"]);
    // Of the same name and index, as a trap.
    let trap = namespaces().expect("as before");
    set_attribute(&trap.near, "napi_defer_hard_irqs", "2");
    trap.enter(move || drop(guard));
    assert_eq!(deferred(&renamed), ["0", "0"]);
    assert_eq!(deferred(&trap.near), ["2", "0"]);
}

#[test]
fn deferral_of_an_interface_that_is_deleted() {
    let Some(lab) = namespaces() else { return };
    lab.enter(|| {
        let near = near_interface();
        let guard = Deferral::default().apply(&near).unwrap();
        let record = guard.record().unwrap().to_owned();
        lab.near.delete().unwrap();
        let error = guard.restore().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LinkGone, "{error}");
        assert!(!record.exists(), "there is nothing to restore any more");
        let error = Deferral::default().apply(&near).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LinkGone, "{error}");
    });
}

#[test]
fn a_port_defers_until_its_last_socket_is_gone() {
    let Some(lab) = Lab::for_test() else { return };
    let raw = lab.raw().unwrap();
    lab.enter(|| {
        let mut port = near().defer_interrupts(Deferral::default()).open().unwrap();
        assert_eq!(deferred(&lab.near), ["2", "200000"]);
        let mut socket = port.take_queue(0).unwrap();
        drop(port);
        assert_eq!(deferred(&lab.near), ["2", "200000"]);
        let series = to_near(&lab, 64);
        raw.send_all(&frames(&series, 500)).unwrap();
        let mut checker = Checker::new(series);
        receive(&mut socket, &mut checker, 500, 64);
        assert!(checker.tally().is_perfect(500), "{:?}", checker.tally());
        drop(socket);
        assert_eq!(deferred(&lab.near), ["0", "0"]);

        let error = near().defer_interrupts(Deferral::default().hard_irqs(0)).open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!(lab.near.xdp_program().unwrap(), None, "nothing stays attached");
    });
}

/// Set for the process that is killed.
const VICTIM: &str = "XSKIT_TEST_VICTIM";

/// What the process does that is killed.
fn be_the_victim<T>(work: impl FnOnce() -> T) {
    let _guard = work();
    println!("DONE");
    thread::sleep(LIMIT);
    panic!("nobody has killed this process");
}

/// Runs a test's victim in the calling thread's namespace until it has done its work, then `look`, then kills
/// it.
fn kill_one(test: &str, look: impl FnOnce()) {
    kill_one_with(test, "1", look);
}

/// The same, with something that the victim is to know.
fn kill_one_with(test: &str, what: &str, look: impl FnOnce()) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", test]).env(VICTIM, what).stdout(Stdio::piped());
    let mut victim = die_with_parent(&mut command).spawn().unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("DONE")));
    look();
    victim.kill().unwrap();
    victim.wait().unwrap();
}

#[test]
fn what_a_killed_process_has_deferred_is_restored_by_the_next_one() {
    if env::var_os(VICTIM).is_some() {
        return be_the_victim(|| Deferral::default().apply(&near_interface()).unwrap());
    }
    let Some(lab) = namespaces() else { return };
    let other = namespaces().expect("as before");
    let name = "what_a_killed_process_has_deferred_is_restored_by_the_next_one";
    lab.enter(|| {
        let defer_and_die = || {
            kill_one(name, || {
                assert_eq!(deferred(&lab.near), ["2", "200000"]);
                assert_eq!(restored(), NONE, "it is alive");
            });
            assert_eq!(deferred(&lab.near), ["2", "200000"], "it could not restore them");
        };
        defer_and_die();
        // Of another namespace it is not taken up.
        assert_eq!(other.enter(restored), NONE);
        assert_eq!(deferred(&lab.near), ["2", "200000"]);
        assert_eq!(restored(), ["deferral of near0 restored"]);
        assert_eq!(deferred(&lab.near), ["0", "0"]);
        assert_eq!(restored(), NONE);

        // Whoever comes next restores first, so that it knows what it will have to restore itself.
        defer_and_die();
        let guard = Deferral::default().hard_irqs(3).apply(&near_interface()).unwrap();
        assert_eq!(deferred(&lab.near), ["3", "200000"]);
        drop(guard);
        assert_eq!(deferred(&lab.near), ["0", "0"]);

        // What somebody has changed since stays.
        defer_and_die();
        set_attribute(&lab.near, "gro_flush_timeout", "1");
        assert_eq!(restored(), ["deferral of near0 restored"]);
        assert_eq!(deferred(&lab.near), ["0", "1"]);
    });
}

/// Nothing was restored.
const NONE: [&str; 0] = [];

/// What is restored when that is asked for, in words.
fn restored() -> Vec<String> {
    interface::restore_stale().unwrap().iter().map(ToString::to_string).collect()
}

/// Whether receive VLAN and transmit checksum offload are on.
fn offloads(link: &Link) -> [bool; 2] {
    link.netns().enter(|| {
        let facts = Interface::by_name(link.name()).unwrap().facts().unwrap();
        [facts.rx_vlan_offload.unwrap(), link.offload(Offload::TxChecksum).unwrap()]
    })
}

#[test]
fn what_a_killed_process_has_switched_off_is_on_again_with_the_next_one() {
    if env::var_os(VICTIM).is_some() {
        return be_the_victim(|| {
            [interface::Offload::RxVlan, interface::Offload::TxChecksum].map(|offload| {
                let guard = offload.disable(&near_interface()).unwrap();
                assert!(guard.changed() && guard.record().is_some_and(Path::exists));
                guard
            })
        });
    }
    let Some(lab) = Lab::for_test() else { return };
    let name = "what_a_killed_process_has_switched_off_is_on_again_with_the_next_one";
    lab.near.set_offload(Offload::TxChecksum, true).unwrap();
    lab.enter(|| {
        assert_eq!(offloads(&lab.near), [true, true]);
        let die = || {
            kill_one(name, || {
                assert_eq!(offloads(&lab.near), [false, false]);
                assert_eq!(restored(), NONE, "it is alive");
                assert_eq!(offloads(&lab.near), [false, false]);
            });
            assert_eq!(offloads(&lab.near), [false, false], "it could not switch them on");
        };
        die();
        // The newest first.
        assert_eq!(restored(), ["offload of near0 restored"; 2]);
        assert_eq!(offloads(&lab.near), [true, true]);
        assert_eq!(restored(), NONE);

        // A port restores them too, and a guard of another kind.
        die();
        drop(near().open().unwrap());
        assert_eq!(offloads(&lab.near), [true, true]);
        die();
        drop(Deferral::default().apply(&near_interface()).unwrap());
        assert_eq!(offloads(&lab.near), [true, true]);

        // One that is gone needs nothing.
        die();
        lab.near.delete().unwrap();
        assert_eq!(restored(), NONE);
    });
}

/// Changed twice, by two processes that were killed: it is what it was in the beginning.
#[test]
fn changes_one_on_top_of_the_other_are_undone_in_turn() {
    if let Some(rounds) = env::var_os(VICTIM) {
        let rounds = rounds.to_str().unwrap().parse().unwrap();
        return be_the_victim(|| {
            // The first one's change is the second one's "before" only as long as the first one lives.
            Deferral::default().hard_irqs(rounds).apply(&near_interface()).unwrap()
        });
    }
    let Some(lab) = namespaces() else { return };
    let name = "changes_one_on_top_of_the_other_are_undone_in_turn";
    lab.enter(|| {
        kill_one_with(name, "5", || {
            kill_one_with(name, "6", || assert_eq!(deferred(&lab.near), ["6", "200000"]));
        });
        assert_eq!(deferred(&lab.near), ["6", "200000"]);
        assert_eq!(restored(), ["deferral of near0 restored"; 2]);
        assert_eq!(deferred(&lab.near), ["0", "0"]);
    });
}

#[test]
fn a_record_of_another_version_is_left_alone() {
    let Some(lab) = namespaces() else { return };
    lab.enter(|| {
        // A guard's record, copied: locked by nobody.
        let guard = Deferral::default().apply(&near_interface()).unwrap();
        let record = guard.record().unwrap().to_owned();
        let other = record.with_extension("another-version");
        drop(guard);
        for nonsense in ["", "deferral", "deferral x\n", "deferral 1\nnonsense", "other 1\n"] {
            fs::write(&other, nonsense).unwrap();
            assert_eq!(restored(), NONE, "{nonsense}");
            assert!(other.exists(), "{nonsense}");
            fs::remove_file(&other).unwrap();
        }
    });
}

#[test]
fn facts_of_queues() {
    let Some(lab) = Lab::for_test_with(&LabConfig { queues: 2, ..LabConfig::default() }) else {
        return;
    };
    lab.enter(|| {
        let near_interface = near_interface();
        let queues = || near_interface.queue_facts().unwrap();
        let ids: Vec<u32> = queues().iter().map(|queue| queue.id.get()).collect();
        assert_eq!(ids, [0, 1]);
        assert!(queues().iter().all(|queue| !queue.socket && queue.napi.is_none()));
        assert_eq!(near_interface.napis().unwrap(), [], "there is no program, hence no loop");

        let port = near().queues([1]).open().unwrap();
        let bound: Vec<bool> = queues().iter().map(|queue| queue.socket).collect();
        // A kernel before 6.15 does not tell.
        assert!(bound == [false, true] || bound == [false, false], "{bound:?}");
        // veth has its loops now, and does not say which queue is whose.
        assert!(queues().iter().all(|queue| queue.napi.is_none()));
        for napi in near_interface.napis().unwrap() {
            assert_eq!(napi.interrupt, None);
            assert!(napi.id > 0);
            assert!(napi.defer_hard_irqs.is_none_or(|rounds| rounds == 0));
        }
        drop(port);
        eventually("the queue has no socket any more", || {
            queues().iter().all(|queue| !queue.socket)
        });

        lab.near.down().unwrap();
        assert_eq!(queues().len(), 2, "the same number while it is down");
        lab.near.delete().unwrap();
        let error = near_interface.queue_facts().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LinkGone, "{error}");
    });
}

/// Whether the kernel counts any membership.
fn is_promiscuous(link: &Link) -> bool {
    let flags = attribute(link, "flags");
    u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap() & 0x100 != 0
}

#[test]
fn promiscuous_until_the_last_guard_is_dropped() {
    let Some(lab) = namespaces() else { return };
    lab.enter(|| {
        let near = near_interface();
        assert!(!is_promiscuous(&lab.near));
        let first = Promiscuous::on(&near).unwrap();
        let second = Promiscuous::on(&near).unwrap();
        assert!(is_promiscuous(&lab.near) && !is_promiscuous(&lab.far));
        assert_eq!(first.interface(), &near);
        drop(first);
        assert!(is_promiscuous(&lab.near));
        lab.far.netns().enter(|| drop(second));
        assert!(!is_promiscuous(&lab.near));

        lab.near.delete().unwrap();
        let error = Promiscuous::on(&near).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LinkGone, "{error}");
    });
}

#[test]
fn promiscuous_ends_with_a_killed_process() {
    if env::var_os(VICTIM).is_some() {
        return be_the_victim(|| Promiscuous::on(&near_interface()).unwrap());
    }
    let Some(lab) = namespaces() else { return };
    lab.enter(|| {
        kill_one("promiscuous_ends_with_a_killed_process", || assert!(is_promiscuous(&lab.near)));
        eventually("it is over", || !is_promiscuous(&lab.near));
    });
}

#[test]
fn a_port_is_promiscuous_until_its_last_socket_is_gone() {
    let Some(lab) = Lab::for_test() else { return };
    lab.enter(|| {
        let mut port = near().open().unwrap();
        assert!(!is_promiscuous(&lab.near), "unless it is asked for");
        drop(port);
        port = near().promiscuous(true).open().unwrap();
        let socket = port.take_queue(0).unwrap();
        drop(port);
        assert!(is_promiscuous(&lab.near));
        drop(socket);
        assert!(!is_promiscuous(&lab.near));
    });
}

#[test]
fn checksum_offload_goes_off_and_comes_back() {
    let Some(lab) = namespaces() else { return };
    lab.enter(|| {
        let near = near_interface();
        let is_on = || lab.near.offload(Offload::TxChecksum).unwrap();
        // The lab has switched it off.
        let guard = interface::Offload::TxChecksum.disable(&near).unwrap();
        assert!(!guard.changed());
        assert_eq!(guard.to_string(), "transmit checksum offload of near0: was off");
        drop(guard);
        assert!(!is_on());

        lab.near.set_offload(Offload::TxChecksum, true).unwrap();
        let guard = interface::Offload::TxChecksum.disable(&near).unwrap();
        assert!(guard.changed() && !is_on());
        assert_eq!(guard.to_string(), "transmit checksum offload of near0: switched off");
        guard.restore().unwrap();
        assert!(is_on());
        drop(interface::Offload::TxChecksum.disable(&near).unwrap());
        assert!(is_on());
        let guard = interface::Offload::TxChecksum.disable(&near).unwrap();
        lab.near.delete().unwrap();
        assert_eq!(guard.restore().unwrap_err().kind(), ErrorKind::LinkGone);

        // What is fixed stays on.
        let lo = Interface::by_name("lo").unwrap();
        let error = interface::Offload::TxChecksum.disable(&lo).unwrap_err();
        assert_eq!(
            (error.step(), error.kind()),
            (Step::Offload, ErrorKind::Unsupported),
            "{error}"
        );
    });
}

/// veth steers nothing, and says so; what is wrong before that is said first.
#[test]
fn a_device_without_steering_says_so() {
    let Some(lab) = Lab::for_test_with(&LabConfig { queues: 2, ..LabConfig::default() }) else {
        return;
    };
    lab.enter(|| {
        let interface = near_interface();
        let zero = [QueueId::new(0)];
        let rules = Rules::udp_port(4242);
        let errors = [
            Spread::over(&interface, &zero).unwrap_err(),
            FlowRules::install(&interface, &rules, &zero).unwrap_err(),
            near().queues([0]).steer(Steering::Spread).open().unwrap_err(),
            near().queues([0]).steer(Steering::Flows).open().unwrap_err(),
        ];
        for error in errors {
            let text = error.to_string();
            assert_eq!(
                (error.step(), error.kind()),
                (Step::Steer, ErrorKind::Unsupported),
                "{text}"
            );
            assert_eq!(error.interface(), Some("near0"));
            assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
            assert!(text.contains("the device has none; open all of its queues"), "{text}");
        }
        assert_eq!(lab.near.xdp_program().unwrap(), None, "nothing stays attached");

        let missing = [QueueId::new(1), QueueId::new(2)];
        for error in [
            Spread::over(&interface, &missing).unwrap_err(),
            FlowRules::install(&interface, &rules, &missing).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert_eq!(error.queue(), Some(QueueId::new(2)));
            assert!(error.to_string().contains("2 active queues"), "{error}");
        }
        for error in [
            Spread::over(&interface, &[]).unwrap_err(),
            FlowRules::install(&interface, &rules, &[]).unwrap_err(),
            FlowRules::install(&interface, &Rules::all(), &zero).unwrap_err(),
            FlowRules::install(&interface, &Rules::none(), &zero).unwrap_err(),
            FlowRules::install(&interface, &vec![Rule::new().source_port(1)].into(), &zero)
                .unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.next_step().is_some(), "{error}");
        }

        lab.near.delete().unwrap();
        for error in [
            Spread::over(&interface, &zero).unwrap_err(),
            FlowRules::install(&interface, &rules, &zero).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::LinkGone, "{error}");
        }
    });
}

#[test]
fn a_snapshot_has_every_layer() {
    let Some(lab) = Lab::for_test() else { return };
    let mut raw = lab.raw().unwrap();
    lab.enter(|| {
        let mut port = near().socket(rings(64)).open().unwrap();
        let mut socket = port.take_queue(0).unwrap();
        let series = to_near(&lab, 64);
        raw.send_all(&frames(&series, 40)).unwrap();
        eventually("all have arrived", || port.snapshot().unwrap().counters.total.redirected == 40);
        eventually("and lie in the ring", || {
            port.snapshot().unwrap().sockets[0].statistics.levels.rx == 40
        });
        let before = port.snapshot().unwrap();
        assert_eq!(before.frames.rx, 40);
        assert!(before.frames.is_complete(), "{before}");
        let mut checker = Checker::new(series);
        receive(&mut socket, &mut checker, 30, 10);
        let series = to_far(&lab, 64);
        send(&mut socket, &series, 0..20, 10);
        collect(&mut raw, &mut Checker::new(series), 20);
        settle(&mut socket);

        let snapshot = port.snapshot().unwrap();
        let [one] = snapshot.sockets[..] else { panic!("one socket: {snapshot}") };
        let statistics = one.statistics;
        assert_eq!(one.queue, QueueId::new(0));
        assert_eq!(statistics, socket.statistics().unwrap());
        assert_eq!((statistics.received, statistics.sent), (30, 20));
        assert_eq!((statistics.levels.rx, statistics.levels.tx), (10, 0));
        assert!(statistics.wakeups_spared_rx >= 3, "in copy mode no call is needed: {snapshot}");
        // In copy mode every batch to send needs one.
        assert!(statistics.wakeups_tx >= 2 && statistics.wakeups_spared_tx == 0, "{snapshot}");
        let text = snapshot.to_string();
        for words in ["program: redirected 40", "queue 0: received 30, sent 20", "in rx 10"] {
            assert!(text.contains(words), "{text}");
        }
        let umem = port.umem().clone();
        drop(socket);
        assert_eq!(port.snapshot().unwrap().sockets, [], "it is closed");
        drop(port);
        comes_home(&umem, &[(&near_interface(), 0)]);
    });
}
