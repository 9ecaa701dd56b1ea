// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
//
// Puts what is sent into the queue of another socket, to see whether the kernel counts what is there.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} sockets SEC(".maps");

SEC("sk_msg")
int forward(struct sk_msg_md *message)
{
	return bpf_msg_redirect_map(message, &sockets, 0, BPF_F_INGRESS);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
