;; Does what the request's header `order` says: its first letter is the order, the rest its argument.
(module
  (import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
  (import "env" "proxy_get_header_map_value" (func $get (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_header_map_pairs" (func $get_all (param i32 i32 i32) (result i32)))
  (import "env" "proxy_set_header_map_pairs" (func $set_all (param i32 i32 i32) (result i32)))
  (import "env" "proxy_add_header_map_value" (func $add (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_replace_header_map_value" (func $replace (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_remove_header_map_value" (func $remove (param i32 i32 i32) (result i32)))
  (import "env" "proxy_get_property" (func $property (param i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_shared_data" (func $get_shared (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_set_shared_data" (func $set_shared (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_send_local_response" (func $answer (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_buffer_bytes" (func $buffer (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_set_tick_period_milliseconds" (func $tick (param i32) (result i32)))
  (import "env" "proxy_http_call" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))

  (memory (export "memory") 1)
  (data (i32.const 0) "order\00\00\00x-seen\00\00:path\00\00\00x-count\00shared\00\00stop here\00\00\00\00\00\00\00")
  (data (i32.const 128) "request\00path")
  ;; One field whose name has more bytes than there are.
  (data (i32.const 160) "\01\00\00\00\ff\ff\ff\7f\01\00\00\00a\00b\00")
  ;; A million fields.
  (data (i32.const 192) "\40\42\0f\00")
  ;; Where texts come to: address and length.
  (global $text (mut i32) (i32.const 0))
  (global $length (mut i32) (i32.const 0))
  (global $free (mut i32) (i32.const 4096))
  (global $wild (mut i32) (i32.const 0))
  ;; Requests that this instance has seen.
  (global $seen (mut i32) (i32.const 0))

  (func (export "proxy_abi_version_0_2_1"))
  (func (export "malloc") (param $size i32) (result i32)
    (if (i32.eq (global.get $wild) (i32.const 1)) (then (return (i32.const 0x7ffffff0))))
    (if (i32.eq (global.get $wild) (i32.const 2)) (then (return (i32.const 0))))
    (if (i32.eq (global.get $wild) (i32.const 3)) (then
      (drop (call $get_all (i32.const 0) (i32.const 64) (i32.const 68)))))
    (if (i32.eq (global.get $wild) (i32.const 4)) (then (loop $on (br $on))))
    (global.get $free)
    (global.set $free (i32.add (global.get $free) (local.get $size))))

  (func $header (param $name i32) (param $size i32) (result i32)
    (call $get (i32.const 0) (local.get $name) (local.get $size) (i32.const 64) (i32.const 68)))
  (func $recurse (param i32) (result i32)
    (i32.add (call $recurse (i32.add (local.get 0) (i32.const 1))) (i32.const 1)))

  (func (export "proxy_on_configure") (param i32 i32) (result i32)
    ;; A configuration that begins with `t` asks for a tick, one with `n` is refused, one with `r` asks for chance.
    (drop (call $buffer (i32.const 7) (i32.const 0) (i32.const 100) (i32.const 64) (i32.const 68)))
    (if (local.get 1) (then
      (if (i32.eq (i32.load8_u (i32.load (i32.const 64))) (i32.const 0x74)) (then (drop (call $tick (i32.const 1000)))))
      (if (i32.eq (i32.load8_u (i32.load (i32.const 64))) (i32.const 0x72)) (then (drop (call $random (i32.const 72) (i32.const 8)))))
      (if (i32.eq (i32.load8_u (i32.load (i32.const 64))) (i32.const 0x6e)) (then (return (i32.const 0))))))
    (global.set $seen (i32.const 100))
    (i32.store (i32.const 256) (i32.const 100))
    (i32.const 1))

  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (local $order i32)
    (global.set $seen (i32.add (global.get $seen) (i32.const 1)))
    (i32.store (i32.const 256) (i32.add (i32.load (i32.const 256)) (i32.const 1)))
    ;; Both are 101 in an instance that begins where the start ended, and sees its first request.
    (if (i32.ne (global.get $seen) (i32.const 101)) (then unreachable))
    (if (i32.ne (i32.load (i32.const 256)) (i32.const 101)) (then unreachable))
    (if (call $header (i32.const 0) (i32.const 5)) (then
      ;; No order: x-seen gets the path.
      (if (call $property (i32.const 128) (i32.const 12) (i32.const 64) (i32.const 68)) (then unreachable))
      (drop (call $replace (i32.const 0) (i32.const 8) (i32.const 6) (i32.load (i32.const 64)) (i32.load (i32.const 68))))
      (return (i32.const 0))))
    (local.set $order (i32.sub (i32.load8_u (i32.load (i32.const 64))) (i32.const 0x61)))
    (block $z (block $y (block $x (block $w (block $v (block $u (block $t (block $s (block $r (block $q (block $p (block $o
    (block $n (block $m (block $l (block $k (block $j (block $i (block $h (block $g (block $f (block $e (block $d (block $c
    (block $b (block $a
      (br_table $a $b $c $d $e $f $g $h $i $j $k $l $m $n $o $p $q $r $s $t $u $v $w $x $y $z $z (local.get $order)))
    (; a: trap ;) unreachable)
    (; b: loop ;) (loop $on (br $on)))
    (; c: loop over memory that grows ;) (loop $on
      (if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then unreachable)) (br $on)))
    (; d: stack ;) (return (call $recurse (i32.const 0))))
    (; e: beyond the memory ;) (return (i32.load (i32.const 0x10000000))))
    (; f: a wild text ;) (return (call $log (i32.const 2) (i32.const 0xfffffff0) (i32.const 0x100))))
    (; g: a wild place for an answer ;)
      (return (call $get (i32.const 0) (i32.const 0) (i32.const 5) (i32.const 0xffffffff) (i32.const 0xfffffffd))))
    (; h: a list with a name longer than everything ;)
      (return (call $set_all (i32.const 0) (i32.const 160) (i32.const 16))))
    (; i: a list of a million ;) (return (call $set_all (i32.const 0) (i32.const 192) (i32.const 1024))))
    (; j: ever more fields ;) (loop $on
      (drop (call $add (i32.const 0) (i32.const 8) (i32.const 6) (i32.const 8) (i32.const 6))) (br $on)))
    (; k: the path ;) (return (call $replace (i32.const 0) (i32.const 16) (i32.const 5) (i32.const 8) (i32.const 6))))
    (; l: a pause ;) (return (i32.const 1)))
    (; m: no action ;) (return (i32.const 77)))
    (; n: a call-out ;) (return (call $call (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
        (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))))
    (; o: a body ;) (return (call $buffer (i32.const 0) (i32.const 0) (i32.const 9) (i32.const 64) (i32.const 68))))
    (; p: a wild allocator ;) (global.set $wild (i32.const 1))
      (return (call $get_all (i32.const 0) (i32.const 64) (i32.const 68))))
    (; q: an allocator without capacity ;) (global.set $wild (i32.const 2))
      (return (call $get_all (i32.const 0) (i32.const 64) (i32.const 68))))
    (; r: an allocator that allocates ;) (global.set $wild (i32.const 3))
      (return (call $get_all (i32.const 0) (i32.const 64) (i32.const 68))))
    (; s: a shared value replaced by who has not seen it: the status, 8, becomes the action ;)
      (return (call $set_shared (i32.const 32) (i32.const 6) (i32.const 0) (i32.const 5) (i32.const 12345))))
    (; t: count in shared data ;)
      (if (call $get_shared (i32.const 32) (i32.const 6) (i32.const 64) (i32.const 68) (i32.const 72)) (then
        (i32.store (i32.const 80) (i32.const 0))) (else
        (i32.store (i32.const 80) (i32.load (i32.load (i32.const 64))))))
      (i32.store (i32.const 80) (i32.add (i32.load (i32.const 80)) (i32.const 1)))
      (if (call $set_shared (i32.const 32) (i32.const 6) (i32.const 80) (i32.const 4) (i32.load (i32.const 72))) (then unreachable))
      (i32.store8 (i32.const 80) (i32.add (i32.load8_u (i32.const 80)) (i32.const 0x30)))
      (return (call $add (i32.const 0) (i32.const 24) (i32.const 7) (i32.const 80) (i32.const 1))))
    (; u: an answer ;)
      (drop (call $answer (i32.const 418) (i32.const 40) (i32.const 9) (i32.const 40) (i32.const 9) (i32.const 0) (i32.const 0) (i32.const -1)))
      (return (i32.const 1)))
    (; v: a complaint, and a trap ;) (drop (call $log (i32.const 5) (i32.const 40) (i32.const 9))) unreachable)
    (; w: a flood of lines ;) (loop $on (drop (call $log (i32.const 2) (i32.const 40) (i32.const 9))) (br $on)))
    (; x: wild pieces of a print ;) (return (call $write (i32.const 1) (i32.const 0xfffffff0) (i32.const 64) (i32.const 0))))
    (; y: an allocator that never ends ;) (global.set $wild (i32.const 4))
      (return (call $get_all (i32.const 0) (i32.const 64) (i32.const 68))))
    (; z: nothing ;) (i32.const 0))

  ;; The response learns what the request's side of this instance has left.
  (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
    (i32.store8 (i32.const 80) (i32.add (i32.sub (global.get $seen) (i32.const 100)) (i32.const 0x30)))
    (call $add (i32.const 2) (i32.const 24) (i32.const 7) (i32.const 80) (i32.const 1))))
