/* Marks: instructions that do nothing, which the counter sees. An eight-byte nop with a displacement that no compiler
 * makes: its first byte is what the mark means, the others spell "hnl". */
#ifndef HOMENODE_LAB_MARK_H
#define HOMENODE_LAB_MARK_H

enum mark {
    MARK_COMMAND_BEGIN = 1, /* from here the counter counts, and its model delays */
    MARK_COMMAND_END = 2,
    MARK_BEGIN = 3, /* an interval of its own begins */
    MARK_END = 4,
};

#define MARK(meaning) \
    __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00, %c0, 0x68, 0x6e, 0x6c" ::"i"(meaning) : "memory")

#endif
