r"""Reference answers of every form that `--task math` meets, for the kinds of rewrites in answer_kinds.py."""

_WRITTEN = r"""
0  1  2  3  5  7  8  12  17  24  36  42  64  99  100  120  144  243  360  512  729  999  1024  2021  4096  5040  10080
58500  65536  123456  1000000  123454321  -1  -2  -5  -11  -48  -360  -2047  1{,}250  10,\!080  58,500  362{,}880
\frac{1}{2}  \frac{1}{3}  \frac{2}{3}  \frac{3}{4}  \frac{7}{5}  \frac{5}{8}  \frac{11}{6}  \frac{13}{4}  \frac{22}{7}
\frac{99}{100}  \frac{1}{270725}  \frac{17}{50}  -\frac{1}{2}  -\frac{7}{3}  -\frac{15}{4}  \frac{9}{16}
\frac{243}{625}  \frac{1}{1024}  \frac{355}{113}  \frac{3}{56}  \frac{270}{7}  -\frac{35}{9}  \frac{2}{21}
\dfrac{5}{9}  \frac{125}{12}  0.5  0.25  1.5  2.75  0.125  12.8  3.14  0.001  99.9  -0.6  -3.25  0.0625  18.9
1.23 \times 10^{-5}  6.02 \times 10^{23}  0.0000004  2.5 \times 10^{-7}  \sqrt{2}  \sqrt{3}  \sqrt{51}  2\sqrt{3}
5\sqrt{2}  3\sqrt{13}  10\sqrt{7}  -\sqrt{5}  \frac{\sqrt{3}}{2}  \frac{\sqrt{2}}{2}  \frac{5\sqrt{42}}{27}
1 + \sqrt{2}  3 - \sqrt{7}  2 + 3\sqrt{5}  \frac{1 + \sqrt{5}}{2}  \sqrt{2} + \sqrt{3}  \sqrt[3]{2}  2\sqrt[3]{5}
\frac{3\sqrt{5} - 1}{4}  12 + 12\sqrt{2}  \frac{1}{\sqrt{2}}  5 - 2\sqrt{6}  \pi  2\pi  8\pi  \frac{\pi}{6}
\frac{3\pi}{4}  \frac{\pi^2}{8}  16 - 4\pi  \frac{9}{4}\pi  36\pi  12 + 6\pi  9\pi\sqrt{2}  2^{10}  2^{100}  3^{50}
2^{1000}  e^2  e^{-3}  10!  \binom{17}{9}  \frac{7!}{3!}  x  2x  x + 1  3x - 5  x^2 + 1  x^2 - 3x + 2  2x^3 - 5x + 7
x^4 + 4x^2 + 16  (x + 1)(x - 2)  5(x - 3)^2  a + b  2c + d  12 - 3m  4t  \pi r^2 h  2ab + c^2  x^3 + y^3
\frac{x + 1}{x - 1}  \frac{1}{x + 2}  \frac{2x}{x^2 + 1}  6r^2 - 4r - 24  -4x^4 + x^3 + 3x^2 + 2x  x^{10} - 1
2^{n + 1} - 1  \frac{n(n + 1)}{2}  p - q  2 - 2p  \sqrt{x}  \frac{a + b}{2}  3uv^2 - w  (a - 2)(b + 3)  |x - 3|
3 + 4i  -2i  1 - i  6 - 5i  \frac{1 + i}{2}  -3 + 2i  1 + 274i  12 + 5i  \sin x  \cos 2x  2 \sin b \cos a  \tan^2 x
\sin^2 x + 1  \sec^2 x  \arctan 2  \ln 2  \log_2 3  \log_{10} 7  3 \ln 5  \ln x  \frac{\ln 3}{2}  (1,2)  (3, -4)
(0, 5)  (2, 1, 7)  (6,31,-1)  (1,-16,-4,43)  \left( 3, \frac{\pi}{2} \right)  \left( \frac{3}{2}, -13 \right)
(-2, \sqrt{3})  (x, 2)  (5, 9, 11)  \left( \frac{1}{5}, \frac{1}{6} \right)  \{1, 2, 3\}  \{0, 1\}  \{-3, 5\}
\{2, 4, 8, 16\}  \{\frac{1}{2}, 3\}  \{1 \pm \sqrt{5}, -2\}  1, 2  1,-2  3, 5, 7  -2, 1  0, 4, 9  \frac{1}{2}, 4
\sqrt{2}, -\sqrt{2}  1 \pm \sqrt{19}  6 \text{ and } 8  2 \pm i  [0, 1)  (3, 4]  [-2, 7]  (2, \infty)  (-\infty, 3)
(-\infty, 0]  [5, \infty)  \left( \frac{3}{5}, \frac{8}{3} \right]  (-\infty, 2) \cup (3, \infty)  (0, 9) \cup (9, 36)
[1, 2] \cup (4, 6)  x \in [-2, 7]  (-\sqrt{3}, \sqrt{3})  x < 3  x > 5  x \le 2  x \ge -1  1 < x < 4  -2 \le x \le 7
0 \le y < 9  k \ge 2  \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}  \begin{pmatrix} -1 & 0 \\ 5 & 2 \end{pmatrix}
\begin{pmatrix} 1 & 2 & 3 \\ 4 & 5 & 6 \end{pmatrix}  \begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}
\begin{pmatrix} \frac{1}{5} \\ 3 \end{pmatrix}  \begin{pmatrix} 16/49 \\ 48/49 \\ 24/49 \end{pmatrix}
\begin{bmatrix} 2 & 7 \\ 9 & 11 \end{bmatrix}  x = 5  y = 2x + 3  y = -2x  y = x^2 - 1  5x - 7y + 11z + 4 = 0
x^2 + y^2 = 4  2x + 3y = 6  f(x) = 3x - 1  x = -\frac{1}{2}  \frac{x^2}{9} + \frac{y^2}{4} = 1  5\text{ cm}
12\text{ cm}^2  864 \mbox{ inches}^2  15\mbox{ cm}^2  10\text{ units}  125\text{ miles}  5\text{ hours}
30\text{ minutes}  2.5\text{ kg}  18\text{ km}  60\text{ mph}  12\text{ miles per hour}  7\text{ feet}  3\text{ m}
40\text{ seconds}  \frac{3}{2}\text{ hours}  8\pi\text{ cm}^3  9\text{ students}  6\text{ gallons}
2\sqrt{2}\text{ inches}  90^\circ  30^\circ  145^\circ  22.5^\circ  \frac{270}{7}\text{ degrees}  54^\circ, 60^\circ
50\%  12.5\%  7\%  100\%  28\%  \$10  \$36  \$18.90  \$32,348  5.4 \text{ cents}  \$1.5  250\text{ dollars}  52_8
4210_5  204_5  2516_8  40_9  1011_2  4343_{6}  12AB_{16}  \text{Evelyn}  \text{even}  \text{east}  \text{ellipse}
\text{Navin}  \text{yes}  \text{June 20}  \text{odd}  \text{two-lane}  \text{(A)}  \text{(C)}  \text{E}  \text{B}
4:30\text{ p.m.}  10:15\text{ a.m.}  12:45 p.m.  6:05\text{ p.m.}  9:50  3:4  18\text{ thousand}  2\text{ million}
1.5\text{ million}  3\frac{1}{2}  15\frac{39}{40}  2\frac{1}{3}
"""

GOLDS = [gold for line in _WRITTEN.strip().split("\n") for gold in line.split("  ") if gold]
