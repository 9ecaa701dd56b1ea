//! `memcpy` and its kin, which the compiler expects, and which no library provides here.
//!
//! Short blocks, the common case, are moved with a few overlapping loads and stores; long ones by the processor's own
//! string instructions, whose start-up cost pays only from a few hundred bytes on. Assembly, because the compiler would
//! turn loops written in Rust into calls to the very functions they are.

core::arch::global_asm!(
    r#"
    .text
    .globl memcpy
    .globl memmove
    .balign 32
memcpy:
memmove:
    mov rax, rdi
    cmp rdx, 16
    jb .Lcopy_below16
    cmp rdx, 32
    ja .Lcopy_upto64
    movups xmm0, [rsi]
    movups xmm1, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + rdx - 16], xmm1
    ret
.Lcopy_upto64:
    cmp rdx, 64
    ja .Lcopy_long
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + rdx - 32]
    movups xmm3, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + rdx - 32], xmm2
    movups [rdi + rdx - 16], xmm3
    ret
.Lcopy_long:
    mov rcx, rdi
    sub rcx, rsi
    cmp rcx, rdx
    jb .Lcopy_backward                           /* the target starts inside the source */
    cmp rdx, 512
    jae .Lcopy_string
    movups xmm4, [rsi + rdx - 16]   /* read before the loop may overwrite it */
    lea r8, [rdi + rdx - 16]
.Lcopy_forward:
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    add rsi, 32
    add rdi, 32
    lea r9, [rdi + 16]
    cmp r9, r8
    jbe .Lcopy_forward
    cmp rdi, r8
    jae .Lcopy_tail
    movups xmm0, [rsi]
    movups [rdi], xmm0
.Lcopy_tail:
    movups [r8], xmm4
    ret
.Lcopy_string:
    mov rcx, rdx
    rep movsb
    ret
.Lcopy_backward:
    movups xmm4, [rsi]              /* downwards, 16 bytes at a time; the first 16 last */
    mov r8, rdi
.Lcopy_down:
    movups xmm0, [rsi + rdx - 16]
    movups [rdi + rdx - 16], xmm0
    sub rdx, 16
    cmp rdx, 16
    ja .Lcopy_down
    movups [r8], xmm4
    ret
.Lcopy_below16:
    cmp edx, 8
    jb .Lcopy_below8
    mov r8, [rsi]
    mov r9, [rsi + rdx - 8]
    mov [rdi], r8
    mov [rdi + rdx - 8], r9
    ret
.Lcopy_below8:
    cmp edx, 4
    jb .Lcopy_below4
    mov r8d, [rsi]
    mov r9d, [rsi + rdx - 4]
    mov [rdi], r8d
    mov [rdi + rdx - 4], r9d
    ret
.Lcopy_below4:
    test edx, edx
    jz .Lcopy_done
    movzx r8d, byte ptr [rsi]
    movzx r9d, byte ptr [rsi + rdx - 1]
    mov ecx, edx
    shr ecx, 1
    movzx r10d, byte ptr [rsi + rcx]
    mov [rdi + rcx], r10b
    mov [rdi], r8b
    mov [rdi + rdx - 1], r9b
.Lcopy_done:
    ret

    .globl memset
    .balign 32
memset:
    mov rax, rdi
    cmp rdx, 512
    jae .Lset_string
    movzx esi, sil
    mov r8, 0x0101010101010101
    imul rsi, r8
    cmp rdx, 16
    jb .Lset_below16
    movq xmm0, rsi
    punpcklqdq xmm0, xmm0
    lea r8, [rdi + rdx - 16]
.Lset_blocks:
    movups [rdi], xmm0
    add rdi, 16
    cmp rdi, r8
    jb .Lset_blocks
    movups [r8], xmm0
    ret
.Lset_string:
    mov r8, rdi
    mov eax, esi
    mov rcx, rdx
    rep stosb
    mov rax, r8
    ret
.Lset_below16:
    cmp edx, 8
    jb .Lset_below8
    mov [rdi], rsi
    mov [rdi + rdx - 8], rsi
    ret
.Lset_below8:
    cmp edx, 4
    jb .Lset_below4
    mov [rdi], esi
    mov [rdi + rdx - 4], esi
    ret
.Lset_below4:
    test edx, edx
    jz .Lset_done
    mov [rdi], sil
    mov [rdi + rdx - 1], sil
    shr edx, 1
    mov [rdi + rdx], sil
.Lset_done:
    ret

    .globl memcmp
    .globl bcmp
    .balign 32
memcmp:
bcmp:
    cmp rdx, 16
    jb .Lcompare_below16
    lea r8, [rdx - 16]              /* offset of the last, overlapping block */
    xor ecx, ecx
.Lcompare_blocks:
    movups xmm0, [rdi + rcx]
    movups xmm1, [rsi + rcx]
    pcmpeqb xmm0, xmm1
    pmovmskb eax, xmm0
    xor eax, 0xffff
    jnz .Lcompare_differ
    cmp rcx, r8
    jae .Lcompare_equal
    add rcx, 16
    cmp rcx, r8
    jbe .Lcompare_blocks
    mov rcx, r8
    jmp .Lcompare_blocks
.Lcompare_differ:
    bsf eax, eax
    add rcx, rax
    movzx eax, byte ptr [rdi + rcx]
    movzx edx, byte ptr [rsi + rcx]
    sub eax, edx
    ret
.Lcompare_below16:
    xor ecx, ecx
.Lcompare_bytes:
    cmp rcx, rdx
    jae .Lcompare_equal
    movzx eax, byte ptr [rdi + rcx]
    movzx r8d, byte ptr [rsi + rcx]
    inc rcx
    sub eax, r8d
    jz .Lcompare_bytes
    ret
.Lcompare_equal:
    xor eax, eax
    ret
    "#
);
