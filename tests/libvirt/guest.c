/* SPDX-License-Identifier: Apache-2.0 */
/* A guest without an operating system, which fails on command: one byte on its serial port.
 *
 *   h  answer "OK"                    i  arm the i6300esb watchdog, 1 s
 *   p  panic    l  dump kernel loads  w  arm the ib700 watchdog, 2 s
 *   r  reset    s  power off          d  read a sector    D  write one
 *   b  hang and spin                  x  hang and do nothing
 *   a  answer as a guest agent        A  stop that
 *   q  say whether it was pinged
 *
 * It sleeps until something comes, and powers off when its power button is pressed. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

enum { COM1 = 0x3F8, PVPANIC = 0x505, KEYBOARD = 0x64, PM_BASE = 0x600, SMI_COMMAND = 0xB2 };
enum { PCI_ADDRESS = 0xCF8, PCI_DATA = 0xCFC, IDE = 0x1F0, IDE_CONTROL = 0x3F6, IB700 = 0x443 };

static void out8(u16 port, u8 value) { __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port)); }
static void out16(u16 port, u16 value) { __asm__ volatile("outw %0, %1" ::"a"(value), "Nd"(port)); }
static void out32(u16 port, u32 value) { __asm__ volatile("outl %0, %1" ::"a"(value), "Nd"(port)); }
static u8 in8(u16 port) { u8 v; __asm__ volatile("inb %1, %0" : "=a"(v) : "Nd"(port)); return v; }
static u16 in16(u16 port) { u16 v; __asm__ volatile("inw %1, %0" : "=a"(v) : "Nd"(port)); return v; }
static u32 in32(u16 port) { u32 v; __asm__ volatile("inl %1, %0" : "=a"(v) : "Nd"(port)); return v; }

__asm__(
    /* how a boot loader knows us */
    ".text\n.align 4\n.long 0x1BADB002, 0, -0x1BADB002\n"
    ".globl _start\n"
    "_start: cli\n movl $stack_top, %esp\n call main\n"
    "1: hlt\n jmp 1b\n"
    /* an interrupt wakes the loop; the power button is obeyed at once, for it stays pressed */
    ".globl woken\n"
    "woken: pushal\n"
    " movw $0x600, %dx\n inw %dx, %ax\n testw $0x100, %ax\n jz 2f\n"
    " movw $0x604, %dx\n movw $0x2000, %ax\n outw %ax, %dx\n"
    "2: movb $0x20, %al\n outb %al, $0xA0\n outb %al, $0x20\n popal\n iret\n"
    ".bss\n.align 16\n.skip 8192\nstack_top:\n.text\n");
extern void woken(void);

/* serial port */

static void put(char c) {
    while (!(in8(COM1 + 5) & 0x20)) {}
    out8(COM1, (u8)c);
}

static void say(const char *text) {
    while (*text) put(*text++);
    put('\n');
}

/* PCI */

static u32 address(u32 device, u32 where) { return 0x80000000u | device << 11 | (where & 0xFC); }

static u32 pci_read(u32 device, u32 where) {
    out32(PCI_ADDRESS, address(device, where));
    return in32(PCI_DATA);
}

static void pci_write(u32 device, u32 where, u32 value) {
    out32(PCI_ADDRESS, address(device, where));
    out32(PCI_DATA, value);
}

static int pci_find(u32 id) {
    for (int device = 0; device < 32; device++)
        if (pci_read((u32)device, 0) == id) return device;
    return -1;
}

/* watchdogs */

static void unlock(volatile u8 *base) {
    *(volatile u16 *)(base + 0xC) = 0x80;
    *(volatile u16 *)(base + 0xC) = 0x86;
}

static void i6300esb(void) {
    int device = pci_find(0x25AB8086);
    if (device < 0) { say("no watchdog"); return; }
    pci_write((u32)device, 4, pci_read((u32)device, 4) | 2);
    volatile u8 *base = (volatile u8 *)(pci_read((u32)device, 0x10) & ~15u);
    out32(PCI_ADDRESS, address((u32)device, 0x60));
    out16(PCI_DATA, 3); /* no interrupt at the first stage */
    unlock(base); *(volatile u32 *)base = 1 << 9;
    unlock(base); *(volatile u32 *)(base + 4) = 1 << 9;
    unlock(base); *(volatile u16 *)(base + 0xC) = 0x100;
    out32(PCI_ADDRESS, address((u32)device, 0x68));
    out8(PCI_DATA, 2);
    say("armed");
}

/* a disk, sector 0 */

static void disk(int write) {
    while (in8(IDE + 7) & 0x80) {}
    out8(IDE + 6, 0xE0); out8(IDE + 2, 1);
    out8(IDE + 3, 0); out8(IDE + 4, 0); out8(IDE + 5, 0);
    out8(IDE + 7, write ? 0x30 : 0x20);
    for (int i = 0; i < 4; i++) in8(IDE_CONTROL);
    u8 status;
    while ((status = in8(IDE + 7)) & 0x80) {}
    for (int i = 0; i < 256 && !(status & 1); i++) {
        if (write) out16(IDE, 0x4141);
        else in16(IDE);
    }
    if (write) out8(IDE + 7, 0xE7);
    while ((status = in8(IDE + 7)) & 0x80) {}
    say(status & 1 ? "bad" : "good");
}

/* the channel of a guest agent, by virtio-serial: port 1, and an agent that answers everything */

enum { FEATURES = 4, QUEUE_PAGE = 8, QUEUE_SIZE = 12, QUEUE_SELECT = 14, NOTIFY = 16, STATUS = 18 };
enum { CONTROL = 3, FROM_HOST = 4, TO_HOST = 5, WRITABLE = 2 };
enum { MULTIPORT = 2, DEVICE_READY = 0, PORT_READY = 3, PORT_OPEN = 6 };

struct descriptor { u32 low, high, length; u16 flags, next; };
struct queue {
    u8 memory[8192] __attribute__((aligned(4096)));
    volatile struct descriptor *descriptor;
    volatile u16 *available, *used;
    u16 number, size, seen;
};
static struct queue control, from_host, to_host;
static u8 heard[2048];
static u16 base;
static int is_open, pinged;

static void queue_begin(struct queue *queue, u16 number) {
    queue->number = number;
    out16(base + QUEUE_SELECT, number);
    queue->size = in16(base + QUEUE_SIZE);
    u32 rings = 16u * queue->size, used = (rings + 2u * (3u + queue->size) + 4095u) & ~4095u;
    queue->descriptor = (void *)queue->memory;
    queue->available = (volatile u16 *)(queue->memory + rings);
    queue->used = (volatile u16 *)(queue->memory + used);
    out32(base + QUEUE_PAGE, (u32)queue->memory >> 12);
}

static void queue_put(struct queue *queue, void *data, u32 length, u16 flags) {
    queue->descriptor[0].low = (u32)data;
    queue->descriptor[0].length = length;
    queue->descriptor[0].flags = flags;
    queue->available[2 + queue->available[1] % queue->size] = 0;
    __asm__ volatile("" ::: "memory");
    queue->available[1]++;
    out16(base + NOTIFY, queue->number);
}

static int queue_done(struct queue *queue) { return queue->used[1] != queue->seen; }

static void queue_send(struct queue *queue, void *data, u32 length) {
    queue_put(queue, data, length, 0);
    while (!queue_done(queue)) {}
    queue->seen++;
}

static void order(u32 port, u16 event, u16 value) {
    static struct { u32 port; u16 event, value; } message;
    message.port = port; message.event = event; message.value = value;
    queue_send(&control, &message, sizeof message);
}

static int agent_found(void) {
    int device = pci_find(0x10031AF4);
    if (device < 0) return 0;
    pci_write((u32)device, 4, pci_read((u32)device, 4) | 5);
    base = (u16)(pci_read((u32)device, 0x10) & ~3u);
    out8(base + STATUS, 0);
    out8(base + STATUS, 3);
    out32(base + FEATURES, MULTIPORT);
    queue_begin(&control, CONTROL);
    queue_begin(&from_host, FROM_HOST);
    queue_begin(&to_host, TO_HOST);
    out8(base + STATUS, 7);
    order(0, DEVICE_READY, 1);
    order(1, PORT_READY, 1);
    queue_put(&from_host, heard, sizeof heard - 1, WRITABLE);
    return 1;
}

static void agent(u16 open) {
    if (!base && !agent_found()) { say("no channel"); return; }
    order(1, PORT_OPEN, open);
    is_open = open;
    out8(0x21, open ? 0xEA : 0xEB); /* the clock wakes us to look whether we were asked */
    say("channel");
}

static const char *after(const char *text, const char *words) {
    for (; *text; text++) {
        const char *a = text, *b = words;
        while (*b && *a == *b) { a++; b++; }
        if (!*b) return a;
    }
    return 0;
}

static void answer(void) {
    static char said[128];
    const char *head = "{\"return\": ", *id;
    char *end = said;
    u32 length = *(volatile u32 *)(from_host.used + 2 + 4 * (from_host.seen % from_host.size) + 2);
    heard[length < sizeof heard ? length : sizeof heard - 1] = 0;
    from_host.seen++;
    const char *text = (const char *)heard;
    if (after(text, "guest-ping")) pinged = 1;
    if (after(text, "delimited")) *end++ = (char)0xFF;
    while (*head) *end++ = *head++;
    if ((id = after(text, "\"id\":")))
        while (*id == ' ' || (*id >= '0' && *id <= '9')) *end++ = *id++;
    else { *end++ = '{'; *end++ = '}'; }
    *end++ = '}'; *end++ = '\n';
    queue_send(&to_host, said, (u32)(end - said));
    queue_put(&from_host, heard, sizeof heard - 1, WRITABLE);
}

/* all of it */

struct __attribute__((packed)) table { u16 limit; u32 base; };
static unsigned long long segments[3] = {0, 0x00CF9A000000FFFFULL, 0x00CF92000000FFFFULL};
static u32 interrupts[256 * 2];

static void ready(void) {
    struct table gdt = {sizeof segments - 1, (u32)segments};
    struct table idt = {sizeof interrupts - 1, (u32)interrupts};
    __asm__ volatile("lgdt %0\n ljmp $8, $1f\n1: movl $16, %%eax\n"
                     " movl %%eax, %%ds\n movl %%eax, %%es\n movl %%eax, %%ss" ::"m"(gdt) : "eax");
    for (int i = 0x20; i < 0x30; i++) {
        interrupts[i * 2] = ((u32)woken & 0xFFFF) | 8 << 16;
        interrupts[i * 2 + 1] = ((u32)woken & 0xFFFF0000) | 0x8E00;
    }
    __asm__ volatile("lidt %0" ::"m"(idt));
    out8(0x20, 0x11); out8(0xA0, 0x11); out8(0x21, 0x20); out8(0xA1, 0x28);
    out8(0x21, 4); out8(0xA1, 2); out8(0x21, 1); out8(0xA1, 1);
    out8(0x21, 0xEB); out8(0xA1, 0xFD); /* the serial port's, the power button's */
    out8(COM1 + 1, 0); out8(COM1 + 3, 3); out8(COM1 + 2, 1); out8(COM1 + 4, 0x0B);
    out8(COM1 + 1, 1);
    out8(SMI_COMMAND, 0xF1);
    out16(PM_BASE + 2, 0x100);
    say("ready");
}

void main(void) {
    ready();
    for (;;) {
        __asm__ volatile("cli");
        if (is_open && queue_done(&from_host)) answer();
        if (!(in8(COM1 + 5) & 1)) { __asm__ volatile("sti; hlt"); continue; }
        switch (in8(COM1)) {
        case 'h': say("OK"); break;
        case 'p': out8(PVPANIC, 1); break;
        case 'l': out8(PVPANIC, 2); break;
        case 'r': out8(KEYBOARD, 0xFE); break;
        case 's': out16(PM_BASE + 4, 0x2000); break;
        case 'i': i6300esb(); break;
        case 'w': out8(IB700, 0x0E); say("armed"); break;
        case 'd': disk(0); break;
        case 'D': disk(1); break;
        case 'a': agent(1); break;
        case 'A': agent(0); break;
        case 'q': say(pinged ? "pinged" : "not yet"); break;
        case 'b': for (;;) {}
        case 'x': for (;;) __asm__ volatile("cli; hlt");
        }
    }
}
