//! Tasks in a tokio runtime. The tests count polls, never time.

use super::*;
use std::sync::mpsc;
use std::thread;
use tokio::sync::{Notify, oneshot};

fn block_on<T: 'static>(main: impl Future<Output = T> + 'static) -> T {
    let result = Rc::new(Cell::new(None));
    let place = result.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(async move { place.set(Some(main.await)) }));
    result.take().expect("it ended, and did not panic")
}

/// Lets each ready task have a turn.
async fn pass() {
    let mut passed = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut passed, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Says when it is dropped.
struct DropCounter(Rc<Cell<u32>>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn every_task_runs_to_its_end() {
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    block_on(async move {
        let done = Rc::new(Notify::new());
        for number in 0..1000 {
            let (count, done) = (counted.clone(), done.clone());
            spawn_for(Class(number % 7), async move {
                for _ in 0..number % 5 {
                    pass().await;
                }
                tokio::time::sleep(Duration::from_millis(number % 3)).await;
                count.set(count.get() + 1);
                done.notify_one();
            });
        }
        while counted.get() < 1000 {
            done.notified().await;
        }
    });
    assert_eq!(count.get(), 1000);
}

#[test]
fn what_is_for_idle_moments_waits_for_one() {
    let (busy, idle) = block_on(async {
        let calls = Rc::new(Cell::new(0));
        let counted = calls.clone();
        when_idle(move || counted.set(counted.get() + 1));
        for _ in 0..1000 {
            pass().await;
        }
        let busy = calls.get();
        tokio::time::sleep(Duration::from_millis(1)).await;
        (busy, calls.get())
    });
    assert_eq!(busy, 0, "the task was ready all the time");
    assert!(idle > 0, "nothing was ready while it slept");
}

#[test]
fn another_thread_wakes_a_worker_that_sleeps() {
    let (to_thread, at_thread) = mpsc::channel::<oneshot::Sender<u32>>();
    let thread = thread::spawn(move || {
        for (number, sender) in (0..).zip(at_thread) {
            thread::sleep(Duration::from_millis(1));
            sender.send(number).unwrap();
        }
    });
    let numbers = block_on(async move {
        let mut numbers = Vec::new();
        for _ in 0..20 {
            let (sender, receiver) = oneshot::channel();
            let (inner_sender, inner) = oneshot::channel();
            to_thread.send(sender).unwrap();
            spawn(async move { inner_sender.send(receiver.await.unwrap()).unwrap() });
            numbers.push(inner.await.unwrap());
        }
        numbers
    });
    thread.join().unwrap();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
}

#[test]
fn who_is_always_ready_keeps_nobody_waiting() {
    let busy = Rc::new(Cell::new(0_u32));
    let polls = busy.clone();
    block_on(async move {
        for _ in 0..1000 {
            let busy = busy.clone();
            spawn_for(Class(10), async move {
                loop {
                    busy.set(busy.get() + 1);
                    // Some work, so that a turn of theirs is not shorter than one of the other's.
                    std::hint::black_box((0..2000).fold(0_u64, |sum, number| std::hint::black_box(sum ^ number)));
                    pass().await;
                }
            });
        }
        let (done, is_done) = oneshot::channel();
        spawn_for(Class(11), async move {
            for _ in 0..100 {
                pass().await;
            }
            done.send(()).unwrap();
        });
        is_done.await.unwrap();
    });
    // In one queue each of the hundred turns would have waited for a thousand.
    assert!(polls.get() < 20_000, "{} polls of the others", polls.get());
}

#[test]
fn sockets_and_timers_are_looked_at_while_tasks_are_ready() {
    block_on(async {
        for _ in 0..10 {
            spawn_for(Class(10), async {
                loop {
                    pass().await;
                }
            });
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        spawn(async move { drop(tokio::net::TcpStream::connect(address).await.unwrap()) });
        listener.accept().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    });
}

#[test]
fn a_task_that_never_waits_for_sockets_is_interrupted_all_the_same() {
    block_on(async {
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let sent = sender.clone();
        // Data is always available; only tokio's budget makes it wait.
        spawn_for(Class(10), async move {
            loop {
                sent.send(()).unwrap();
                receiver.recv().await.unwrap();
            }
        });
        for _ in 0..10 {
            pass().await;
        }
    });
}

#[test]
fn work_is_charged_to_whom_it_is_for() {
    block_on(async {
        let (done, is_done) = oneshot::channel();
        spawn_for(Class::UNATTRIBUTED, async {
            let class = || with_running(TaskOwner::class).unwrap();
            assert_eq!(class(), Class::UNATTRIBUTED);
            let connection = with_running(TaskOwner::clone).unwrap();
            let other = spawn(async {});
            charge(Class(10));
            assert_eq!((class(), other.class()), (Class(10), Class::UNATTRIBUTED));
            let upstream = spawn(std::future::pending());
            assert_eq!(upstream.class(), Class(10));
            let (charged, is_charged) = oneshot::channel();
            spawn_part(async move {
                charge(Class(11));
                charged.send(()).unwrap();
            });
            is_charged.await.unwrap();
            assert_eq!((class(), connection.class()), (Class(11), Class(11)));
            upstream.follow();
            assert_eq!(upstream.class(), Class(11));
            done.send(()).unwrap();
        });
        is_done.await.unwrap();
    });
    assert_eq!(Class::of("shop/web"), Class::of("shop/web"));
    assert_ne!(Class::of("shop/web"), Class::of("shop/cart"));
}

#[test]
fn a_task_that_panics_harms_no_other() {
    let dropped = Rc::new(Cell::new(0));
    let held = DropCounter(dropped.clone());
    block_on(async move {
        spawn(async move {
            let _held = held;
            panic!("on purpose");
        });
        for _ in 0..3 {
            pass().await;
        }
        assert_eq!(dropped.get(), 1);
    });
}

#[test]
fn one_of_its_own_ends_when_it_is_dropped() {
    let dropped = Rc::new(Cell::new(0));
    let held = DropCounter(dropped.clone());
    block_on(async move {
        let own = spawn_own(async move {
            let _held = held;
            std::future::pending().await
        });
        pass().await;
        assert_eq!(dropped.get(), 0);
        drop(own);
        pass().await;
        pass().await;
        assert_eq!(dropped.get(), 1);
    });
}

#[test]
fn when_the_worker_ends_nothing_is_left() {
    let dropped = Rc::new(Cell::new(0));
    let count = dropped.clone();
    let (leak, leaked) = mpsc::channel();
    block_on(async move {
        let held = || DropCounter(count.clone());
        for _ in 0..10 {
            // Waits for ever; starts another one when it ends, which comes too late.
            let (mine, last) = (held(), held());
            spawn(async move {
                let _mine = mine;
                let _starts = Starts(Some(last));
                std::future::pending::<()>().await;
            });
            // Always ready.
            let mine = held();
            spawn(async move {
                let _mine = mine;
                loop {
                    pass().await;
                }
            });
            // Its waker is in another's hands.
            let (mine, leak) = (held(), leak.clone());
            spawn(poll_fn(move |cx| {
                let _mine = &mine;
                leak.send(cx.waker().clone()).unwrap();
                Poll::Pending
            }));
        }
        for _ in 0..3 {
            pass().await;
        }
        // Never polled.
        let mine = held();
        spawn(async move { drop(mine) });
    });
    assert_eq!(dropped.get(), 41);
    drop(spawn(async {}));
    thread::spawn(move || leaked.try_iter().for_each(Waker::wake)).join().unwrap();
}

struct Starts(Option<DropCounter>);

impl Drop for Starts {
    fn drop(&mut self) {
        let held = self.0.take();
        spawn(async move { drop(held) });
    }
}
