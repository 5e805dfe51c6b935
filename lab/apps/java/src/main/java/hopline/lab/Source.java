package hopline.lab;

/** The seeded stream: xorshift32, each word as four bytes, the lowest first. */
final class Source {
    private int word;
    private int at = 4;

    Source(long seed) {
        int start = (int) seed * (int) 2_654_435_761L;
        word = start == 0 ? 1 : start;
    }

    byte[] take(int length) {
        byte[] bytes = new byte[length];
        for (int i = 0; i < length; i++) {
            if (at == 4) {
                word ^= word << 13;
                word ^= word >>> 17;
                word ^= word << 5;
                at = 0;
            }
            bytes[i] = (byte) (word >>> (8 * at));
            at++;
        }
        return bytes;
    }
}
